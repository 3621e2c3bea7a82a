# A node: a mount namespace with containerd and kubelet, in which everything has its usual path.
# shellcheck shell=bash

node_names() { [ -d "$state/node" ] && ls "$state/node" | sort -V; }
node_folder() { printf '%s/node/%s' "$state" "$1"; }
node_pid() { part_pid "$1-space"; }
node_number() { printf '%s' "${1##*-}"; }
# The path outside the mount namespace for a path of the node.
seen_from_outside() {
  local view
  for view in "${node_views[@]}"; do
    [ "${view% *}" != "$2" ] || printf '%s/%s' "$(node_folder "$1")" "${view#* }"
  done
}

define_node() {
  local node=$1 number folder view
  number=$(node_number "$node")
  folder=$(node_folder "$node")
  for view in "${node_views[@]}"; do mkdir -p "$folder/${view#* }"; done
  mkdir -p "$folder/kubernetes/manifests" "$folder/kubernetes/volume-plugins"
  make_cgroups "$node"
  (umask 077 && issue "$node" "/O=system:nodes/CN=system:node:$node") || fail "openssl could not make the key of $node"
  kubeconfig "$node" "$folder/kubernetes/kubelet.conf"
  write_network "$node" >"$folder/cni/10-ptp.conflist"
  write_containerd >"$folder/kubernetes/containerd.toml"
  write_kubelet "$number" "$node" >"$folder/kubernetes/kubelet.yaml"
  write_space >"$folder/space"
  chmod +x "$folder/space"
  # The process that keeps the namespace open. Kubelet and containerd start and end in this namespace.
  define_part "$node-space" unshare -m --propagation private "$folder/space"
}

# Writes the script that mounts the node's folders at their usual paths. They are not visible on the machine itself.
write_space() {
  local view
  printf '#!/usr/bin/env bash\n# Turns a mount namespace into a node, then keeps it open.\nset -e\ncd %q\n' "$folder"
  for view in "${node_views[@]}"; do printf 'mount --bind %q %q\n' "${view#* }" "${view% *}"; done
  # Shared mounts, as on a machine with systemd: volumes with mount propagation need them.
  printf 'mount --make-rshared /\ntouch space-ready\nexec -a pause-%s pause\n' "$node"
}

write_network() {
  printf '{"cniVersion":"0.4.0","name":"pods","plugins":[{"type":"ptp","ipMasq":false,"ipam":{"type":"host-local","dataDir":"/var/lib/cni/addresses","ranges":[[{"subnet":"%s"}]],"routes":[{"dst":"0.0.0.0/0"}]}}]}\n' "$(pod_range "$number")"
}

write_containerd() {
  local runtime='plugins."io.containerd.cri.v1.runtime"'
  # Without CAP_SYS_RESOURCE, runc may not lower a sandbox's OOM score, and no pod would start.
  cat <<T
version = 3
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.nri.v1.nri"]
  disable = true
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "registry.local/pause:1"
[$runtime]
  enable_cdi = $([[ $(cat "$state/runtime") = *-cdi-off ]] && printf false || printf true)
  cdi_spec_dirs = ["/etc/cdi", "/run/cdi"]
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [$runtime.cni]
    bin_dirs = ["$(debian_folder)/usr/lib/cni"]
    conf_dir = "/etc/cni/net.d"
  [$runtime.containerd]
    default_runtime_name = "runc"
    [$runtime.containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [$runtime.containerd.runtimes.runc.options]
        SystemdCgroup = false
T
}

write_kubelet() {
  cat <<Y
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: $(node_address "$1")
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cgroupDriver: cgroupfs
cgroupRoot: /$cgroup/$2
failCgroupV1: false
failSwapOn: false
enforceNodeAllocatable: [pods]
# Other programs use the same disk, and a test must not fail because the disk is nearly full.
evictionHard: {nodefs.available: "0%", imagefs.available: "0%", nodefs.inodesFree: "0%", memory.available: "1Mi"}
imageGCHighThresholdPercent: 100
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $state/keys/ca.crt}}
authorization: {mode: Webhook}
makeIPTablesUtilChains: false
staticPodPath: /etc/kubernetes/manifests
volumePluginDir: /etc/kubernetes/volume-plugins
nodeStatusUpdateFrequency: 2s
# How often kubelet looks for new static pods, and compares running pods with the wanted ones.
fileCheckFrequency: 2s
syncFrequency: 5s
readOnlyPort: 0
healthzPort: 0
Y
}

# Makes the cgroups of a node in every hierarchy. With v1, a cpuset accepts processes only if it is not empty.
make_cgroups() {
  local root folder
  for root in /sys/fs/cgroup /sys/fs/cgroup/*; do
    [ -e "$root/cgroup.procs" ] || continue
    [ ! -e "$root/cgroup.subtree_control" ] || [ "$root" = /sys/fs/cgroup ] || { mkdir -p "$root/$cgroup/$1"; continue; }
    for folder in "$root/$cgroup" "$root/$cgroup/$1"; do
      mkdir -p "$folder"
      if [ -e "$folder/cpuset.cpus" ] && [ -e "$root/notify_on_release" ]; then
        cat "$root/cpuset.cpus" >"$folder/cpuset.cpus"
        cat "$root/cpuset.mems" >"$folder/cpuset.mems"
      fi
      # With v2, a cgroup has a controller only if its parent enables it.
      [ ! -e "$folder/cgroup.subtree_control" ] || sed 's/\([a-z]\)\([a-z_]*\)/+\1\2/g' "$folder/cgroup.controllers" >"$folder/cgroup.subtree_control"
    done
    [ "$root" != /sys/fs/cgroup ] || return 0
  done
}

# Starts the mount namespace and the runtime of a node, which needs no API server.
start_runtime() {
  local node=$1 folder
  folder=$(node_folder "$node")
  start_part "$node-space"
  await_part "$node-space" 20 test -e "$folder/space-ready" || fail "no mount namespace for $node"
  define_part "$node-containerd" nsenter -t "$(node_pid "$node")" -m -- containerd --config /etc/kubernetes/containerd.toml
  define_part "$node-kubelet" nsenter -t "$(node_pid "$node")" -m -- kubelet --config /etc/kubernetes/kubelet.yaml --kubeconfig /etc/kubernetes/kubelet.conf \
    --hostname-override "$node" --node-ip "$(node_address "$(node_number "$node")")" --cert-dir /etc/kubernetes/pki
  start_part "$node-containerd"
}

import_images() {
  local node=$1 image
  await_part "$node-containerd" 60 in_node "$node" ctr version || fail "no containerd on $node"
  for image in pause busybox; do
    in_node "$node" ctr -n k8s.io images import "$tools/image/$image.tar" >/dev/null || fail "$node did not take the image $image"
  done
}

in_node() { nsenter -t "$(node_pid "$1")" -m -- "${@:2}"; }

node_ready() { [ "$(kubectl get node "$1" -o 'jsonpath={.status.conditions[?(@.type=="Ready")].status}/{.spec.taints}' 2>/dev/null)" = True/ ]; }
await_node() { await_part "$1-kubelet" 90 node_ready "$1" || fail "$1 is not Ready"; }
