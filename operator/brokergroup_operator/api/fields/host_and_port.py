"""The address of a server that brokers dial, as a rule in words: a pattern of its own would be all that its error says.

It takes what ``Address.parse`` takes (rocketmq_remoting/address.py), but for a zone: the pods that dial have other interfaces.
"""

from typing import Annotated, Final

from msgspec import Meta

_PORT: Final = "([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
_OCTET: Final = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4: Final = rf"{_OCTET}([.]{_OCTET}){{3}}"
_LABEL: Final = "[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_PAIR: Final = "[0-9A-Fa-f]{1,4}"
_IPV6: Final = "|".join(
    (
        rf"({_PAIR}:){{7}}{_PAIR}",
        rf"({_PAIR}:){{1,7}}:",
        *(rf"({_PAIR}:){{1,{left}}}(:{_PAIR}){{1,{7 - left}}}" for left in range(6, 0, -1)),
        rf":(:{_PAIR}){{1,7}}",
        "::",
        rf"::[Ff]{{4}}:{_IPV4}",
    )
)
RULE: Final = (
    rf"self.matches('^({_IPV4}|\\[({_IPV6})\\]|{_LABEL}([.]{_LABEL})*[.]?):{_PORT}$')"
    rf" && (!self.matches('^[0-9.]+:') || self.matches('^{_IPV4}:'))"
)
MESSAGE: Final = (
    "expected host:port with a port from 1 to 65535; an IPv6 address stands in brackets and has no zone, as in"
    " [fd00::10]:9876"
)
HostAndPort = Annotated[
    str,
    Meta(
        min_length=3,
        max_length=259,
        extra_json_schema={
            "x-kubernetes-validations": [{"rule": RULE, "message": MESSAGE, "reason": "FieldValueInvalid"}]
        },
    ),
]
