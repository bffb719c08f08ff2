"""SPEAKS. RocketMQ's remoting protocol: frames, codes, typed headers and bodies, an asyncio server and client.

Knows nothing of broker groups' state or of Kubernetes.
"""
