"""The exception tree.

::

    CarrypostError
    ├── LocalError                 the caller broke the contract; nothing was changed
    │   ├── ConfigError            a setting is unknown, of the wrong type or out of range
    │   ├── PatternError           an interest pattern or selector is not valid
    │   ├── PayloadError           a payload or descriptor that may not be published
    │   └── StateError             a call that the object's state does not allow
    │       └── OrderError         a message that would depend on too much, or one group too many
    ├── RemoteError                a peer's bytes are wrong: counted, dropped, never fatal
    │   ├── DecodeError            bytes that are no frame
    │   ├── LimitError             more of something than `Limits` allows
    │   └── ForgeryError           a signature or digest that does not fit
    ├── FileError                  a file that the machine refuses to read or write, or a damaged one
    ├── StoreError                 the disk could not take or give back a batch
    ├── SendError                 a message was not stored: it is not here
    ├── RunawayError               hosts, or tasks, keep busy without time moving on
    ├── LabError                  Java, Spark or a cluster does not do what the laboratory needs
    ├── NodeError                  this machine does not let a node run; the message says what to do
    │   ├── RunningError         a node runs in that folder
    │   └── NoNodeError                 no node answers at that control socket
    └── JMSException               what the JMS API raises; each is also the error above that it is
        ├── IllegalStateException           a call that does not fit the state of what it is called on; a StateError
        │   └── TransactionInProgressException   a call that has to wait for the end of a transaction
        ├── InvalidClientIDException        a client id that another connection of this node has; a LocalError
        ├── InvalidDestinationException     a name that is none, or that is not known here; a LocalError
        ├── InvalidSelectorException        a message selector that may not be used; a PatternError
        ├── JMSSecurityException            credentials, or a receiver, not accepted; a LocalError
        ├── MessageEOFException             a body ends before what was to be read of it; a PayloadError
        ├── MessageFormatException          a value that no type or limit of messages has room for; a PayloadError
        │   ├── NumberFormatException       a text, or null, read as a number that it is not; a ValueError
        │   └── NullValueException          null, where a type has none; a TypeError
        ├── MessageNotReadableException     a body that is being written; a StateError
        ├── MessageNotWriteableException    a body or properties as they were received; a StateError
        ├── ResourceAllocationException     there is no room for what was asked; a StateError
        ├── TransactionRolledBackException  a commit that could not be: nothing of it happened; a SendError
        ├── DeliveryTimeoutException        nothing was heard of a delivery or a reply in time; a TimeoutError
        ├── NamingException                 something that the directory does not do; a LocalError
        │   ├── NameNotFoundException       a name that the directory of this node does not have
        │   ├── NameAlreadyBoundException   a name that is in use on this node
        │   ├── AmbiguousNameException      a name by which several nodes mean different things
        │   ├── InvalidNameException        a text that is no name
        │   ├── NotContextException         a name of something that has no names below it
        │   └── ContextNotEmptyException    a context that has names, and so cannot be destroyed
        ├── ListenerException               a message that its listener failed with too often; reported, not raised
        └── IllegalArgumentException        an argument that no call of this kind takes; a LocalError and a ValueError

What JMS calls ``…RuntimeException`` in its simplified API is the same class here, under both names.

A `LocalError` reaches the caller that made the mistake. A `RemoteError` never leaves the core: the one place that takes
frames from a peer turns it into a counted refusal with `reason`.
"""

from __future__ import annotations

from carrypost.java_names import add_java_names


class CarrypostError(Exception):
    """Root of everything this package raises on purpose."""


class LocalError(CarrypostError):
    """The caller broke the contract."""


class ConfigError(LocalError):
    """A setting is unknown, of the wrong type or out of range."""


class PatternError(LocalError):
    """An interest pattern or a selector is not valid."""


class PayloadError(LocalError):
    """A payload or descriptor that may not be published."""


class StateError(LocalError):
    """A call that the object's state does not allow."""


class OrderError(StateError):
    """A message that would begin one order group too many; later it may be possible."""


class RemoteError(CarrypostError):
    """A peer's bytes are wrong. `reason` is the short word under which the refusal is counted."""

    def __init__(self, reason: str, message: str = "") -> None:
        super().__init__(message or reason)
        self.reason = reason


class DecodeError(RemoteError):
    """Bytes that are no frame."""


class LimitError(RemoteError):
    """More of something than `Limits` allows."""


class ForgeryError(RemoteError):
    """A signature or digest that does not fit what it should vouch for."""


class FileError(CarrypostError):
    """A file that the machine refuses to read or write, or one that is damaged: nothing that the caller named wrong."""


class StoreError(CarrypostError):
    """The disk could not take or give back a batch."""


class SendError(CarrypostError):
    """A message was not stored: it is not here, and the application has to send it again."""


class RunawayError(CarrypostError):
    """Hosts, or tasks, keep busy without time moving on."""


class LabError(CarrypostError):
    """Java, Spark or a cluster does not do what the laboratory needs; the message says what to do."""


class NodeError(CarrypostError):
    """The machine does not let a node run: a port, a file or a permission. The message says what to do."""


class RunningError(NodeError):
    """A node runs in that folder."""


class NoNodeError(NodeError):
    """No node answers at that control socket."""


class JMSException(CarrypostError):  # noqa: N818 - the name is that of the JMS API
    """Root of what the JMS API raises. What caused it is its `__cause__`, which JMS calls the linked exception."""

    def __init__(self, reason: str = "", error_code: str | None = None) -> None:
        super().__init__(reason)
        self.error_code = error_code
        """A short word for programs, or None."""


add_java_names(
    JMSException,
    {
        "getErrorCode": "the attribute error_code", "getLinkedException": "the attribute __cause__",
        "setLinkedException": "raise … from …", "getMessage": "str(…)",
    },
)  # fmt: skip


class InvalidDestinationException(JMSException, LocalError):  # noqa: N818 - likewise
    """A name or a destination that is none, or that is not known here."""


class InvalidSelectorException(JMSException, PatternError):  # noqa: N818 - likewise
    """A message selector that is not valid, or beyond the bounds of selectors."""

    def __init__(self, reason: str = "", error_code: str | None = None, position: int | None = None) -> None:
        super().__init__(reason, error_code)
        self.position = position
        """The character at which the text goes wrong, counted from 1, or None where it is the text as a whole."""


class IllegalStateException(JMSException, StateError):  # noqa: N818 - likewise
    """A call that does not fit the state of what it is called on."""


class TransactionInProgressException(IllegalStateException):
    """A call that has to wait until the transaction of its context ends."""


class InvalidClientIDException(JMSException, LocalError):  # noqa: N818 - likewise
    """A client id that another connection of this node has."""


class ResourceAllocationException(JMSException, StateError):  # noqa: N818 - likewise
    """There is no room for what was asked; later there may be."""


class MessageFormatException(JMSException, PayloadError):  # noqa: N818 - likewise
    """A value of a type that messages do not have, or that does not fit its type or a limit of messages."""


class NumberFormatException(MessageFormatException, ValueError):  # noqa: N818 - likewise
    """A text that is read as a number and is none, or one beyond the range of its type; or null, read as one."""


class NullValueException(MessageFormatException, TypeError):  # noqa: N818 - likewise
    """Null, where a type has none: what Java says by a NullPointerException."""


class MessageEOFException(JMSException, PayloadError):  # noqa: N818 - likewise
    """The body of a message ends before what was to be read of it."""


class MessageNotReadableException(JMSException, StateError):  # noqa: N818 - likewise
    """The body of a message is being written: `reset` makes it readable."""


class MessageNotWriteableException(JMSException, StateError):  # noqa: N818 - likewise
    """The body or the properties of a message are as they were received: `clear_body` or `clear_properties` first."""


class JMSSecurityException(JMSException, LocalError):  # noqa: N818 - likewise
    """Credentials that are not accepted, or a queue whose owner names other receivers."""


class TransactionRolledBackException(JMSException, SendError):  # noqa: N818 - likewise
    """A commit that could not be: nothing of it happened, and the session is as before it."""


class DeliveryTimeoutException(JMSException, TimeoutError):  # noqa: N818 - likewise
    """Nothing was heard of a delivery, or no reply came, in the time given; it may still come."""

    def __init__(self, reason: str = "", error_code: str | None = None, state: int | None = None) -> None:
        super().__init__(reason, error_code)
        self.state = state
        """Progress of the message, or the request: a `SendState`; None for one of an earlier life."""


class NamingException(JMSException, LocalError):  # noqa: N818 - likewise, of JNDI
    """Root of what the directory raises: what was asked for cannot be done with this name."""


class NameNotFoundException(NamingException):
    """A name that the directory of this node does not have."""


class NameAlreadyBoundException(NamingException):
    """A name that is in use on this node."""


class AmbiguousNameException(NamingException):
    """A name by which several nodes mean different things; the message has the full names."""


class InvalidNameException(NamingException):
    """A text that is no name."""


class NotContextException(NamingException):
    """A name of something that has no names below it."""


class ContextNotEmptyException(NamingException):
    """A context that has names, and so cannot be destroyed."""


class ListenerException(JMSException):
    """A listener failed with a message so often that it does not get it again; reported to exception listeners.

    `message` is that message, `__cause__` what the listener raised last; both are None where earlier lives failed.
    """

    def __init__(self, reason: str = "", message: object = None) -> None:
        super().__init__(reason)
        self.message = message


class IllegalArgumentException(JMSException, LocalError, ValueError):  # noqa: N818 - likewise
    """An argument that no call of this kind takes, whatever the state of things."""


# JMS has each of these twice, as checked exceptions and as those of its simplified API. Python checks none.
JMSRuntimeException = JMSException
IllegalStateRuntimeException = IllegalStateException
InvalidClientIDRuntimeException = InvalidClientIDException
InvalidDestinationRuntimeException = InvalidDestinationException
InvalidSelectorRuntimeException = InvalidSelectorException
JMSSecurityRuntimeException = JMSSecurityException
MessageFormatRuntimeException = MessageFormatException
MessageNotWriteableRuntimeException = MessageNotWriteableException
ResourceAllocationRuntimeException = ResourceAllocationException
TransactionRolledBackRuntimeException = TransactionRolledBackException
