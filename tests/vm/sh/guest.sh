# The guest as a part of the cluster (`vm`), and the way into it.
# shellcheck shell=bash

vm_number=100
vm_address=$(node_address "$vm_number")
# Where the key of the guest's shell and its second disk are: with the cluster, and gone with it.
vm_state=$state/vm

# What differs from one run to the next, as a tar archive that the guest takes for a disk.
make_payload() {
  local root=$vm_state/payload node=$vm_state/payload/etc/kubernetes
  # write_network asks for its node's number by this name.
  local number=$vm_number
  mkdir -p "$node" "$root/etc/containerd" "$root/etc/cni/net.d"
  (umask 077 && issue vm "/O=system:nodes/CN=system:node:vm" && cp "$state"/keys/vm.{crt,key} "$node/" && openssl rand -hex 16 >"$root/etc/vm-key") || fail "openssl could not make the guest's keys"
  cp "$root/etc/vm-key" "$vm_state/key"
  cp "$state/keys/ca.crt" "$node/"
  kubeconfig vm "$node/kubelet.conf"
  sed -i "s#$state/keys/#/etc/kubernetes/#g" "$node/kubelet.conf"
  # Nodes of tests/cluster, but with systemd's cgroups and the paths of Debian's packages.
  write_kubelet "$vm_number" vm | sed -e 's/^cgroupDriver: .*/cgroupDriver: systemd/' -e '/^cgroupRoot:/d' -e 's/^address: .*/address: 0.0.0.0/' -e "s#$state/keys/#/etc/kubernetes/#" >"$node/kubelet.yaml"
  write_containerd | sed -e 's/SystemdCgroup = false/SystemdCgroup = true/' -e '/restrict_oom_score_adj/d' -e 's#^\( *bin_dirs = \).*#\1["/usr/lib/cni"]#' >"$root/etc/containerd/config.toml"
  write_network >"$root/etc/cni/net.d/10-ptp.conflist"
  tar -C "$root" -cf "$vm_state/payload.tar" . || fail "no payload"
}

# Whatever the guest writes is lost with its process: the disk below is never changed. TCG, QEMU's own processor, is on every
# machine the same; KVM is not there on most that tests run on. A reset of the guest loses what its kernel had not written.
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

# in_guest SCRIPT: runs it, prints what it prints, and ends as it does; 255 where the guest does not answer.
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
