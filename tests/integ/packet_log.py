#!/usr/bin/env python3
"""packet_log.py INTERFACE FILE [frames] - writes what TCP carries over an interface, until its standard input ends. Needs root.

FILE gets a pickle: {(source, port, destination, port): bytes}, each stream in the order of its sequence numbers; with frames,
a list of all that passes, each frame with its headers. Prints a line once it listens, and at the end how many packets the
kernel dropped."""
import pickle
import select
import socket
import struct
import sys

ETH_P_ALL, ETH_P_IP, TCP = 3, 0x0800, 6
SOL_PACKET, PACKET_STATISTICS, SO_RCVBUFFORCE = 263, 6, 33


def segment(packet):
    """(stream, sequence number, payload) of a TCP packet; None: it is another."""
    if struct.unpack_from(">H", packet, 12)[0] != ETH_P_IP:
        return None
    ip = packet[14:]
    head, size = (ip[0] & 15) * 4, struct.unpack_from(">H", ip, 2)[0]
    if ip[9] != TCP:
        return None
    tcp = ip[head:size] if size else ip[head:]  # 0: larger than the field can say
    a, b, sequence = struct.unpack_from(">HHI", tcp)
    return (socket.inet_ntoa(ip[12:16]), a, socket.inet_ntoa(ip[16:20]), b), sequence, tcp[(tcp[12] >> 4) * 4:]


def joined(segments):
    """Sequence numbers count from the first one seen, so that they may wrap around."""
    first = segments[0][0]
    out = bytearray()
    for at, data in sorted((((s - first + 2**31) & (2**32 - 1)) - 2**31, d) for s, d in segments):
        if at < len(out):
            data = data[len(out) - at:]  # sent again
        out += data
    return bytes(out)


def main():
    s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    s.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 256 << 20)
    s.bind((sys.argv[1], 0))
    print("listening", flush=True)
    streams, frames = {}, []
    whole = sys.argv[3:] == ["frames"]
    while True:
        ready = select.select([s, sys.stdin], [], [])[0]
        if s in ready:
            packet = s.recv(1 << 18)
            if whole:
                frames.append(packet)
            found = None if whole else segment(packet)
            if found and found[2]:
                streams.setdefault(found[0], []).append(found[1:])
        elif sys.stdin in ready:
            break
    with open(sys.argv[2], "wb") as f:
        pickle.dump(frames if whole else {k: joined(v) for k, v in streams.items()}, f)
    print(struct.unpack("II", s.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8))[1], flush=True)


main()
