#!/usr/bin/python3
"""A proxy that breaks connections: cutter.py HOST:PORT BYTES cut|stall. It prints its own port.

Of each connection it hands on BYTES of what the server sends, then it closes it (cut) or sends nothing more (stall).
"""
import socket
import sys
import threading


def hand_on(source, target, most, then):
    left = most
    try:
        while left and (data := source.recv(min(left, 1 << 16))):
            target.sendall(data)
            left -= len(data)
    except OSError:
        pass
    if left or then == "cut":  # the other side ended, or it is to
        for end in (source, target):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


def main():
    host, port = sys.argv[1].rsplit(":", 1)
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    while True:
        client, _ = listener.accept()
        server = socket.create_connection((host, int(port)))
        threading.Thread(target=hand_on, args=(client, server, 1 << 62, "cut"), daemon=True).start()
        threading.Thread(target=hand_on, args=(server, client, int(sys.argv[2]), sys.argv[3]), daemon=True).start()


main()
