#!/usr/bin/python3
"""A proxy that breaks connections: cutter.py HOST:PORT BYTES cut|stall|lose|slow [TEXT COMMAND]. It prints its own port.

Of each connection it hands on BYTES of what the server sends, then it closes it (cut) or sends nothing more (stall). Or it
loses the first answer (lose): the server has given it, and the first connection closes without a word of it; with TEXT
it is the first good answer to a request that has TEXT in it, and COMMAND runs before the connection closes. Or it hands
on BYTES ten times a second (slow).
"""
import socket
import subprocess
import sys
import threading
import time

asked, lost = threading.Event(), threading.Event()
text, command = (sys.argv[4].encode(), sys.argv[5]) if len(sys.argv) > 4 else (None, None)


def loses(data, to_server):
    """Whether these bytes are of the answer that is lost. The server's word to go on (100) is none."""
    if to_server and text in data and not lost.is_set():
        asked.set()
    if to_server or not asked.is_set() or b"HTTP/1.1 20" not in data:
        return False
    asked.clear()
    lost.set()
    subprocess.run(command, shell=True, check=True)
    return True


def hand_on(source, target, most, then, to_server=False):
    pause, left = (0.1, 1 << 62) if then == "slow" else (0, most)
    try:
        if not most and then == "lose" and not text:
            source.recv(1 << 16)
        while left and (data := source.recv(min(left, most, 1 << 16))):
            if text and loses(data, to_server):
                break
            target.sendall(data)
            left -= len(data)
            time.sleep(pause)
    except OSError:
        pass
    if left or then != "stall":  # the other side ended, or it is to
        for end in (source, target):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


def main():
    host, port = sys.argv[1].rsplit(":", 1)
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    how, most = sys.argv[3], int(sys.argv[2])
    while True:
        client, _ = listener.accept()
        server = socket.create_connection((host, int(port)))
        threading.Thread(target=hand_on, args=(client, server, 1 << 62, "cut", True), daemon=True).start()
        threading.Thread(target=hand_on, args=(server, client, most, how), daemon=True).start()
        if how == "lose":
            most = 1 << 62


main()
