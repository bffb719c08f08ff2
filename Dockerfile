# syntax=docker/dockerfile:1
# One image for the operator and for the replicas of `implementation: Python`. Everything comes from the committed uv.lock,
# without extras: neither the development tools nor Spark are in it. The base image is an argument, for sites with their own.
# `--target sla` builds the other image: SLA reports, with Spark and Java, ten times as large.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
ARG UV_VERSION=0.13.8
ENV UV_PROJECT_ENVIRONMENT=/opt/brokergroup \
    UV_PYTHON_DOWNLOADS=never \
    UV_LINK_MODE=copy \
    UV_COMPILE_BYTECODE=1
RUN python3 -m pip install --no-cache-dir --disable-pip-version-check uv==${UV_VERSION}
WORKDIR /src
# What others wrote first: it changes seldom, and its layer is kept.
COPY pyproject.toml uv.lock README.md LICENSE ./
RUN uv sync --frozen --no-default-groups --no-install-project --python python3
COPY controller_core controller_core
COPY metric_names metric_names
COPY rocketmq_remoting rocketmq_remoting
COPY rocketmq_replica rocketmq_replica
COPY kube_sandbox kube_sandbox
COPY sla_reports sla_reports
COPY operator operator
RUN uv sync --frozen --no-default-groups --no-editable --python python3

FROM build AS build-sla
RUN uv sync --frozen --no-default-groups --no-editable --extra sla --python python3

FROM ${PYTHON_IMAGE} AS sla
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="brokergroup-operator-sla" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0"
# Hadoop, within Spark, asks for the name of its user and fails where the number has none.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 65532 brokergroup \
    && useradd --uid 65532 --gid 65532 --home-dir /tmp --no-create-home --shell /usr/sbin/nologin brokergroup
COPY --from=build-sla /opt/brokergroup /opt/brokergroup
# The path under which the Spark operator is told of it, whatever the version of Python.
COPY sla_reports/pod_application.py /opt/brokergroup/application.py
ENV PATH=/opt/brokergroup/bin:/usr/local/bin:/usr/bin:/bin \
    BROKERGROUP_SPARK_ARCHIVE=/opt/brokergroup/spark.jsa \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
# Spark's classes, read and checked once: a session starts several times faster.
RUN python -m sla_reports.class_archive
USER 65532:65532
WORKDIR /tmp
ENTRYPOINT ["python", "-m", "sla_reports.pod_entrypoint"]
CMD ["--help"]

FROM build AS slim
RUN apt-get update && apt-get install --yes --no-install-recommends binutils
COPY .ci/slim_image.py ./
RUN python3 slim_image.py /opt/brokergroup /opt/root

# From nothing: the interpreter, what it links, a shell and few programs, and the account. No package manager, no pip.
FROM scratch AS operator
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="brokergroup-operator" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=slim /opt/root /
COPY --from=slim /opt/brokergroup /opt/brokergroup
# Bytecode is compiled already, and the root file system may be read-only.
ENV PATH=/opt/brokergroup/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=/tmp \
    LANG=C.UTF-8 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 65532:65532
WORKDIR /tmp
EXPOSE 9878 9879
ENTRYPOINT ["brokergroup"]
CMD ["--help"]
