"""Address of JAX's coordinator: an address that all processes reach, and a free port."""

from __future__ import annotations

import contextlib
import fcntl
import secrets
import socket
import struct
import threading
from collections.abc import Iterator

from mpi4py import MPI

#: Linux's request for the IPv4 address of an interface (netdevice(7)), and the position of
#: the address in the answer.
_SIOCGIFADDR = 0x8915
_ADDRESS = slice(20, 24)
#: Timeout of a connection in seconds. Only a firewall makes a process wait that long.
_PATIENCE = 5.0
_LOOPBACK = "127.0.0.1"


def find(comm: MPI.Intracomm) -> str:
    """An address and a port of rank 0 that all ranks reach. All ranks call this."""
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    is_one_node = comm.allreduce(node.Get_size() == comm.Get_size(), MPI.LAND)
    node.Free()
    addresses = comm.bcast([_LOOPBACK] if is_one_node else _own_addresses())
    secret = comm.bcast(secrets.token_bytes(16))
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(_answering(secret)) if comm.Get_rank() == 0 else None
        port = comm.bcast(port)
        reached = [_reaches(address, port, secret) for address in addresses]
        # Before the socket is closed, on all ranks.
        everywhere = [comm.allreduce(is_reached, MPI.LAND) for is_reached in reached]
    for address, is_reached in zip(addresses, everywhere, strict=True):
        if is_reached:
            return f"{address}:{port}"
    raise RuntimeError(
        "mpi4jax.distributed.initialize() found no address of rank 0's that all ranks "
        f"reach by TCP. Tried: {', '.join(addresses) or 'none, as it has no network'}. Set "
        "JAX_COORDINATOR_ADDRESS to one that they reach, with a port, on all ranks"
    )


def _own_addresses() -> list[str]:
    """The addresses of this machine's interfaces, except for the loopback."""
    addresses = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            with contextlib.suppress(OSError):  # the interface has no IPv4 address
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
                addresses.append(socket.inet_ntoa(answer[_ADDRESS]))
    return [address for address in addresses if not address.startswith("127.")]


@contextlib.contextmanager
def _answering(secret: bytes) -> Iterator[int]:
    """Answer all connections to the yielded port with the secret."""
    with socket.create_server(("", 0), backlog=socket.SOMAXCONN) as server:

        def answer() -> None:
            with contextlib.suppress(OSError):  # the socket is shut down
                while True:
                    connection, _ = server.accept()
                    with connection, contextlib.suppress(OSError):
                        connection.sendall(secret)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def _reaches(address: str, port: int, secret: bytes) -> bool:
    """Whether rank 0 answers at an address, not another machine with the same address."""
    try:
        with socket.create_connection((address, port), timeout=_PATIENCE) as connection:
            return connection.recv(len(secret), socket.MSG_WAITALL) == secret
    except OSError:
        return False
