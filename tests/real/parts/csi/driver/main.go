// Command driver is a CSI driver over folders of one machine, for the two nodes of tests/node: a volume is a folder, a snapshot is a
// copy of it, and a volume may be made from a snapshot. It registers itself at its kubelet, as node-driver-registrar would.
//
//	driver --folder FOLDER --socket PATH --node NAME [--registry KUBELET_ROOT/plugins_registry]
//
// All nodes share the folder. A folder that was not made to its end has the suffix .new, and is made anew.
package main

import (
	"context"
	"errors"
	"flag"
	"log"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

const name = "folders.brokergroup.dev"

type driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	csi.UnimplementedNodeServer
	folder string
	socket string
	node   string
}

func main() {
	folder := flag.String("folder", "", "where volumes and snapshots are")
	socket := flag.String("socket", "", "where it answers")
	node := flag.String("node", "", "the name of its node")
	registry := flag.String("registry", "", "the kubelet's folder of plugins; empty: it registers nowhere")
	flag.Parse()
	served := &driver{folder: *folder, socket: *socket, node: *node}
	for _, kind := range []string{"volumes", "snapshots"} {
		if err := os.MkdirAll(filepath.Join(*folder, kind), 0o755); err != nil {
			log.Fatal(err)
		}
	}
	if *registry != "" {
		go serve(filepath.Join(*registry, "folders.sock"), func(server *grpc.Server) {
			registration.RegisterRegistrationServer(server, &registrar{socket: *socket})
		})
	}
	serve(*socket, func(server *grpc.Server) {
		csi.RegisterIdentityServer(server, served)
		csi.RegisterControllerServer(server, served)
		csi.RegisterNodeServer(server, served)
	})
}

func serve(path string, register func(*grpc.Server)) {
	_ = os.Remove(path)
	listener, err := net.Listen("unix", path)
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(logged))
	register(server)
	log.Fatal(server.Serve(listener))
}

func logged(ctx context.Context, request any, call *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	answer, err := next(ctx, request)
	if err != nil {
		log.Printf("%s: %v", call.FullMethod, err)
	}
	return answer, err
}

type registrar struct {
	registration.UnimplementedRegistrationServer
	socket string
}

func (r *registrar) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{
		Type: registration.CSIPlugin, Name: name, Endpoint: r.socket, SupportedVersions: []string{"1.0.0"},
	}, nil
}

func (r *registrar) NotifyRegistrationStatus(
	_ context.Context, said *registration.RegistrationStatus,
) (*registration.RegistrationStatusResponse, error) {
	if !said.PluginRegistered {
		log.Fatalf("the kubelet refuses the driver: %s", said.Error)
	}
	return &registration.RegistrationStatusResponse{}, nil
}

func (d *driver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: name, VendorVersion: "1"}, nil
}

func (d *driver) GetPluginCapabilities(
	context.Context, *csi.GetPluginCapabilitiesRequest,
) (*csi.GetPluginCapabilitiesResponse, error) {
	controller := &csi.PluginCapability{Type: &csi.PluginCapability_Service_{
		Service: &csi.PluginCapability_Service{Type: csi.PluginCapability_Service_CONTROLLER_SERVICE},
	}}
	return &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{controller}}, nil
}

func (d *driver) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}

func (d *driver) ControllerGetCapabilities(
	context.Context, *csi.ControllerGetCapabilitiesRequest,
) (*csi.ControllerGetCapabilitiesResponse, error) {
	answer := &csi.ControllerGetCapabilitiesResponse{}
	for _, kind := range []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT,
		csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
	} {
		answer.Capabilities = append(answer.Capabilities, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: kind}},
		})
	}
	return answer, nil
}

func (d *driver) ValidateVolumeCapabilities(
	_ context.Context, request *csi.ValidateVolumeCapabilitiesRequest,
) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	return &csi.ValidateVolumeCapabilitiesResponse{
		Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{VolumeCapabilities: request.VolumeCapabilities},
	}, nil
}

func (d *driver) CreateVolume(_ context.Context, request *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	target, err := d.path("volumes", request.Name)
	if err != nil {
		return nil, err
	}
	source := request.GetVolumeContentSource()
	if snapshot := source.GetSnapshot(); snapshot != nil {
		from, err := d.path("snapshots", snapshot.SnapshotId)
		if err != nil {
			return nil, err
		}
		if err := copied(from, target); err != nil {
			return nil, err
		}
	} else if err := os.MkdirAll(target, 0o777); err != nil {
		return nil, err
	}
	if err := os.Chmod(target, 0o777); err != nil {
		return nil, err
	}
	size := request.GetCapacityRange().GetRequiredBytes()
	return &csi.CreateVolumeResponse{
		Volume: &csi.Volume{VolumeId: request.Name, CapacityBytes: size, ContentSource: source},
	}, nil
}

func (d *driver) DeleteVolume(_ context.Context, request *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	path, err := d.path("volumes", request.VolumeId)
	if err == nil {
		err = os.RemoveAll(path)
	}
	return &csi.DeleteVolumeResponse{}, err
}

// ControllerPublishVolume attaches nothing: all nodes share the folder. It is there so that a volume has a VolumeAttachment.
func (d *driver) ControllerPublishVolume(
	context.Context, *csi.ControllerPublishVolumeRequest,
) (*csi.ControllerPublishVolumeResponse, error) {
	return &csi.ControllerPublishVolumeResponse{}, nil
}

func (d *driver) ControllerUnpublishVolume(
	context.Context, *csi.ControllerUnpublishVolumeRequest,
) (*csi.ControllerUnpublishVolumeResponse, error) {
	return &csi.ControllerUnpublishVolumeResponse{}, nil
}

func (d *driver) CreateSnapshot(_ context.Context, request *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	from, err := d.path("volumes", request.SourceVolumeId)
	if err != nil {
		return nil, err
	}
	target, err := d.path("snapshots", request.Name)
	if err != nil {
		return nil, err
	}
	if err := copied(from, target); err != nil {
		return nil, err
	}
	made, err := os.Stat(target + ".made")
	if err != nil {
		return nil, err
	}
	return &csi.CreateSnapshotResponse{Snapshot: &csi.Snapshot{
		SnapshotId: request.Name, SourceVolumeId: request.SourceVolumeId, ReadyToUse: true,
		CreationTime: timestamppb.New(made.ModTime()),
	}}, nil
}

func (d *driver) DeleteSnapshot(_ context.Context, request *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse, error) {
	path, err := d.path("snapshots", request.SnapshotId)
	if err == nil {
		err = errors.Join(os.RemoveAll(path), os.RemoveAll(path+".made"))
	}
	return &csi.DeleteSnapshotResponse{}, err
}

func (d *driver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: d.node}, nil
}

func (d *driver) NodeGetCapabilities(
	context.Context, *csi.NodeGetCapabilitiesRequest,
) (*csi.NodeGetCapabilitiesResponse, error) {
	return &csi.NodeGetCapabilitiesResponse{}, nil
}

func (d *driver) NodePublishVolume(
	_ context.Context, request *csi.NodePublishVolumeRequest,
) (*csi.NodePublishVolumeResponse, error) {
	from, err := d.path("volumes", request.VolumeId)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(request.TargetPath, 0o750); err != nil {
		return nil, err
	}
	if exec.Command("mountpoint", "-q", request.TargetPath).Run() == nil {
		return &csi.NodePublishVolumeResponse{}, nil
	}
	if err := syscall.Mount(from, request.TargetPath, "", syscall.MS_BIND, ""); err != nil {
		return nil, err
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

func (d *driver) NodeUnpublishVolume(
	_ context.Context, request *csi.NodeUnpublishVolumeRequest,
) (*csi.NodeUnpublishVolumeResponse, error) {
	err := syscall.Unmount(request.TargetPath, 0)
	if err != nil && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.ENOENT) {
		return nil, err
	}
	return &csi.NodeUnpublishVolumeResponse{}, os.RemoveAll(request.TargetPath)
}

// path returns where a volume or snapshot is; an id names no other folder.
func (d *driver) path(kind, id string) (string, error) {
	if id == "" || strings.ContainsAny(id, "/\x00") || id == "." || id == ".." {
		return "", status.Errorf(codes.InvalidArgument, "the id is %q, expected a name", id)
	}
	return filepath.Join(d.folder, kind, id), nil
}

// copied copies a folder as a whole, with its owners and holes; one that is there already stays as it is. The file beside it, .made,
// says when.
func copied(from, target string) error {
	if _, err := os.Stat(target); err == nil {
		return nil
	}
	aside := target + ".new"
	if err := os.RemoveAll(aside); err != nil {
		return err
	}
	if told, err := exec.Command("cp", "-a", "--sparse=always", from, aside).CombinedOutput(); err != nil {
		return status.Errorf(codes.Internal, "cp: %v: %s", err, told)
	}
	if err := os.WriteFile(target+".made", nil, 0o644); err != nil {
		return err
	}
	return os.Rename(aside, target)
}
