#!/usr/bin/env python3
"""Prints a port of this host that no server uses now, and that outgoing connections are never given: a client that
dials a port of theirs over and over, until its server listens, would at last be connected to itself.
"""
import random
import socket


def free_port():
    with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:
        first_of_clients = int(file.read().split()[0])
    while True:
        with socket.socket() as server:
            try:
                server.bind(("127.0.0.1", random.randrange(10000, max(first_of_clients, 20000))))
                return server.getsockname()[1]
            except OSError:
                pass


if __name__ == "__main__":
    print(free_port())
