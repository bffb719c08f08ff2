"""SPEAKS. RocketMQ's remoting protocol: frames, codes, typed headers and bodies, an asyncio server and client.

It knows neither the state of broker groups nor Kubernetes.
"""
