"""What tests run on the hosts of a network, without torch; `python talk.py FUNCTION ADDRESS [SIZE]`."""

import json
import socket
import statistics
import sys
import time

PORT = 9000
SILENCE_S = 1.0
DATAGRAMS = 3


def serve(address: str) -> None:
    """Answer each message with a byte, one connection after another."""
    with socket.create_server((address, PORT)) as server:
        print("ready", flush=True)
        while True:
            connection, _ = server.accept()
            with connection, connection.makefile("rb") as incoming:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while header := incoming.readline():
                    incoming.read(int(header))
                    connection.sendall(b".")


def time_messages(address: str, size: int) -> None:
    """Print the median time of an empty message and its answer, and the bandwidth beyond that for one of `size`."""
    with socket.create_connection((address, PORT)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def trip(length: int) -> float:
            begin = time.perf_counter()
            connection.sendall(b"%d\n" % length)
            connection.sendall(bytes(length))
            connection.recv(1)
            return time.perf_counter() - begin

        trip(size)  # a new connection is slow
        round_trip_s = statistics.median(trip(0) for _ in range(9))
        bandwidth = size / (statistics.median(trip(size) for _ in range(3)) - round_trip_s)
        print(json.dumps({"round_trip_s": round_trip_s, "bandwidth": bandwidth}))


def hear(address: str) -> None:
    """Print whether a datagram has come before there was silence for a while."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind((address, PORT))
        receiver.settimeout(SILENCE_S)
        print("ready", flush=True)
        try:
            receiver.recv(1)
        except TimeoutError:
            print("nothing", flush=True)
        else:
            print("heard", flush=True)


def say(address: str) -> None:
    """Send datagrams."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for _ in range(DATAGRAMS):
            sender.sendto(b".", (address, PORT))


if __name__ == "__main__":
    function, address_ = sys.argv[1:3]
    match function:
        case "serve":
            serve(address_)
        case "time":
            time_messages(address_, int(sys.argv[3]))
        case "hear":
            hear(address_)
        case "say":
            say(address_)
