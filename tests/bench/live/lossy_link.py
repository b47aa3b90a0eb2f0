"""Loses packets of a host of a Lan (tests/integ/netns_lan.py), each way: a program between its port and the switch that does not forward
some. For kernels without netem. Run by slow_link_bench.py in the switch's namespace: lossy_link.py DEVICE DEVICE PERCENT."""
import ctypes
import fcntl
import os
import random
import select
import signal
import socket
import struct
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "integ"))
from netns_lan import ip  # noqa: E402

SIOCETHTOOL = 0x8946
OFFLOADS = (0x17, 0x1F, 0x21, 0x24, 0x2C)  # ETHTOOL_STXCSUM, STSO, SUFO, SGSO, SGRO


def whole_packets(device):
    """Checksums are in the packets, and packets are as small as on a wire."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        for command in OFFLOADS:
            value = ctypes.create_string_buffer(struct.pack("II", command, 0), 8)
            try:
                fcntl.ioctl(s, SIOCETHTOOL, struct.pack("16sP", device.encode(), ctypes.addressof(value)))
            except OSError:
                pass  # not every kernel knows each


def lose(lan, node, percent):
    """Returns the process, which loses packets from SIGUSR1 on."""
    for name in lan.nodes:
        subprocess.run(["ip", "netns", "exec", lan.name(name), sys.executable, __file__, "eth0"], check=True)
    ip("-n", lan.switch, "link", "add", "name", f"{node}l", "type", "veth", "peer", "name", f"{node}p")
    ip("-n", lan.switch, "link", "set", node, "nomaster")
    ip("-n", lan.switch, "link", "set", f"{node}l", "master", "switch0")
    for device in f"{node}l", f"{node}p", node:
        ip("-n", lan.switch, "link", "set", device, "up", "promisc", "on")
    return subprocess.Popen(["ip", "netns", "exec", lan.switch, sys.executable, __file__, node, f"{node}p", str(percent)])


def forward(devices, percent):
    ends, losing = [], []
    signal.signal(signal.SIGUSR1, lambda *_: losing.append(True))
    for device in devices:
        whole_packets(device)
        s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        s.bind((device, 0))
        ends.append(s)
    while os.getppid() != 1:
        for s in select.select(ends, [], [], 1)[0]:
            data, address = s.recvfrom(65536)
            if address[2] != socket.PACKET_OUTGOING and (not losing or random.random() * 100 >= percent):
                try:
                    ends[s is ends[0]].send(data)
                except OSError:
                    pass


if __name__ == "__main__":
    if len(sys.argv) == 2:
        whole_packets(sys.argv[1])
    else:
        forward(sys.argv[1:3], float(sys.argv[3]))
