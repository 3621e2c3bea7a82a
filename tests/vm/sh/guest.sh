# Defines the guest as a part of the cluster (`vm`), and runs scripts in it.
# shellcheck shell=bash

vm_number=100
vm_address=$(node_address "$vm_number")
# The folder of the key of the guest's shell and of its second disk. It is removed with the cluster.
vm_state=$state/vm

# Makes the second disk: a tar archive with the files that differ from run to run.
make_payload() {
  local root=$vm_state/payload node=$vm_state/payload/etc/kubernetes
  # write_network reads the node's number from this variable.
  local number=$vm_number
  mkdir -p "$node" "$root/etc/containerd" "$root/etc/cni/net.d"
  (umask 077 && issue vm "/O=system:nodes/CN=system:node:vm" && cp "$state"/keys/vm.{crt,key} "$node/" && openssl rand -hex 16 >"$root/etc/vm-key") || fail "openssl could not make the guest's keys"
  cp "$root/etc/vm-key" "$vm_state/key"
  cp "$state/keys/ca.crt" "$node/"
  kubeconfig vm "$node/kubelet.conf"
  sed -i "s#$state/keys/#/etc/kubernetes/#g" "$node/kubelet.conf"
  # The same configuration as for nodes of tests/cluster, but with systemd's cgroups and the paths of Debian's packages.
  write_kubelet "$vm_number" vm | sed -e 's/^cgroupDriver: .*/cgroupDriver: systemd/' -e '/^cgroupRoot:/d' -e 's/^address: .*/address: 0.0.0.0/' -e "s#$state/keys/#/etc/kubernetes/#" >"$node/kubelet.yaml"
  write_containerd | sed -e 's/SystemdCgroup = false/SystemdCgroup = true/' -e '/restrict_oom_score_adj/d' -e 's#^\( *bin_dirs = \).*#\1["/usr/lib/cni"]#' >"$root/etc/containerd/config.toml"
  write_network >"$root/etc/cni/net.d/10-ptp.conflist"
  tar -C "$root" -cf "$vm_state/payload.tar" . || fail "no payload"
}

# The guest's writes are lost when its process ends: the disk image itself never changes. TCG, QEMU's emulated CPU, is the same
# on every machine; most test machines have no KVM. A reset of the guest loses what its kernel had not written.
define_guest() {
  local image
  image=$(image_folder)
  define_part vm env TMPDIR="$vm_state" qemu-system-x86_64 -machine q35 -cpu max -accel tcg,thread=multi -smp 2 -m 3072 \
    -nodefaults -display none -serial stdio -monitor none -kernel "$image/kernel" -initrd "$image/initrd" \
    -append "root=/dev/vda rw console=ttyS0 quiet systemd.show_status=0 panic=-1" \
    -drive "file=$image/disk.img,format=raw,if=virtio,snapshot=on,cache=unsafe" \
    -drive "file=$vm_state/payload.tar,format=raw,if=virtio,read-only=on" \
    -netdev "user,id=wire,hostfwd=tcp:$vm_address:7000-10.0.2.15:7000,hostfwd=tcp:$vm_address:10250-10.0.2.15:10250" \
    -device virtio-net-pci,netdev=wire -device virtio-rng-pci
}

# in_guest SCRIPT: runs it in the guest, prints its output, and ends with its exit code; 255 if the guest does not answer
in_guest() {
  local answer code
  answer=$(
    exec 3<>"/dev/tcp/$vm_address/7000" || exit 1
    script="exec </dev/null; $1"
    printf '%s %d\n%s' "$(cat "$vm_state/key")" "$(printf %s "$script" | wc -c)" "$script" >&3
    timeout "${2:-600}" cat <&3
  ) 2>/dev/null
  code=$(sed -n '$s/^exit \([0-9]*\)$/\1/p' <<<"$answer")
  [ -n "$code" ] || return 255
  sed '$d' <<<"$answer"
  return "$code"
}
guest_answers() { in_guest true 5; }
