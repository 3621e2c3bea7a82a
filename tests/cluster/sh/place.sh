# The paths of the cluster, and the functions that every script here uses. Sourced, never run.
# shellcheck shell=bash disable=SC2034  # read by the scripts that source it

cluster_folder=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
repository=$(cd "$cluster_folder/../.." && pwd)

# The folder for everything that a running cluster writes. It is short, because a socket path has at most 108 bytes.
state=/var/lib/gpu-steward-cluster
# The lock of the cluster. A script holds it while the script runs, a test while the test uses the cluster.
lock=/run/lock/gpu-steward-cluster
# Every process of the cluster has this mark in its environment, so that the scripts kill no other process.
mark=GPU_STEWARD_CLUSTER_PART=$state
# The parent of all cgroups, below the root of every hierarchy.
cgroup=gpu-steward-cluster
# The programs, kept between runs in the folder of tests/run.
tools=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/gpu-steward-tests/cluster

# Addresses on `lo`. The API server listens on the first address of the service range, so that KUBERNETES_SERVICE_HOST in pods is
# right without kube-proxy. Each node has its own address, so that every node can use the usual ports.
service_range=10.96.0.0/24
api_address=10.96.0.1
node_address() { printf '10.95.0.%d' "$1"; }
pod_range() { printf '10.244.%d.0/24' "$1"; }
# The addresses above do not allow more nodes, and two cores are not enough for more anyway.
max_nodes=16

# The default version of Kubernetes, and the other versions: each has a folder under program/.
usual_kubernetes=1.34
kubernetes_versions=("$usual_kubernetes" 1.37)

# The private folders of a node: the path in its mount namespace, and the folder below its state that is mounted there.
node_views=(
  "/var/lib/kubelet kubelet"
  "/var/lib/containerd containerd"
  "/run/containerd run-containerd"
  "/opt/containerd opt-containerd"
  "/etc/cdi etc-cdi"
  "/run/cdi cdi"
  "/etc/cni/net.d cni"
  "/var/lib/cni cni-state"
  "/etc/kubernetes kubernetes"
  "/var/log/pods log-pods"
  "/var/log/containers log-containers"
  "/var/lib/gpu-steward steward"
  "/run/gpu-steward run-steward"
  "/etc/gpu-steward etc-steward"
)

say() { printf '%s\n' "$*"; }
fail() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; exit 1; }
misuse() { printf '%s: %s; see --help\n' "$(basename "$0")" "$*" >&2; exit 2; }

# Prints the comment at the start of a script as its help.
help() { sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; }

need_root() {
  PATH=$PATH:/usr/sbin:/sbin
  [ "$(id -u)" -eq 0 ] || fail "needs root: it makes mount namespaces, cgroups and addresses on lo"
}

# The machine's programs that the cluster uses, and their Debian packages.
need_programs() {
  local pair missing=()
  for pair in ip=iproute2 nsenter=util-linux unshare=util-linux flock=util-linux curl=curl openssl=openssl; do
    command -v "${pair%=*}" >/dev/null || missing+=("${pair#*=}")
  done
  [ "${#missing[@]}" -eq 0 ] || fail "missing on this machine: apt-get install $(printf '%s\n' "${missing[@]}" | sort -u | paste -sd' ')"
}

# Waits for the lock and keeps it until the end of the script, unless the caller already holds it.
take_lock() {
  [ -z "${GPU_STEWARD_CLUSTER_HELD:-}" ] || return 0
  mkdir -p "$(dirname "$lock")"
  exec 9>>"$lock"
  if ! flock -n 9; then
    say "the cluster is in use by $(cat "$lock"); waiting at most $((${1:-900} / 60)) min"
    flock -w "${1:-900}" 9 || fail "the cluster is still in use by $(cat "$lock"), which has to end first"
  fi
  printf 'process %s, %s\n' "$$" "$0" >"$lock"
}

# await SECONDS WHAT COMMAND...: runs the command every 0.1 s until it succeeds
await() {
  local deadline=$((SECONDS + $1)) what=$2
  shift 2
  until "$@" >/dev/null 2>&1; do
    [ "$SECONDS" -lt "$deadline" ] || { say "timed out while waiting for $what" >&2; return 1; }
    sleep 0.1
  done
}

# Puts the programs of the cluster before those of the machine in PATH.
use_programs() {
  [ -s "$state/path" ] && PATH=$(cat "$state/path"):$PATH
  export PATH KUBECONFIG=$state/admin.kubeconfig
}
