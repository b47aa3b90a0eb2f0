#!/bin/sh
# Unpacks Debian's package prometheus (promtool and prometheus, 19 MB to fetch) into $B/prometheus, for
# tests/integ/test_server_metrics.py. It is not installed: that would start a server on port 9090. Without apt-get or a network
# those tests are skipped.
set -eu
cd "$(dirname "$0")/.."
to=${B:-build}/prometheus
if command -v promtool >/dev/null && command -v prometheus >/dev/null || [ -x "$to/usr/bin/promtool" ]; then
	exit 0
fi
rm -rf "$to.new"
mkdir -p "$to.new"
cd "$to.new"
if ! apt-get download -q prometheus >/dev/null 2>&1 || ! dpkg-deb -x prometheus_*.deb .; then
	echo "get-prometheus: the package prometheus cannot be fetched: tests with promtool will be skipped" >&2
	cd ..
	rm -rf prometheus.new
	exit 0
fi
rm -f prometheus_*.deb
cd ..
rm -rf prometheus
mv prometheus.new prometheus
