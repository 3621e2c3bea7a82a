# Builds the guest's disk: Debian of the host's release, with systemd, the cluster's kubelet and containerd, and the files below
# guest/. The disk stays between runs, in a folder whose name is the hash of everything that it is built from.
# shellcheck shell=bash

vm_tools=$(dirname "$tools")/vm
# The guest has the host's release, because the program under test is linked with the host's libc.
guest_release=$release
[ "$guest_release" = trixie ] || guest_release=bookworm
guest_packages=systemd,systemd-sysv,dbus,udev,linux-image-cloud-amd64,iproute2,kmod,procps,runc,containernetworking-plugins,curl
# Debian takes 0.5 GB and the programs 0.2 GB. The rest is for pods and their logs; the file is sparse, so unused space takes no
# room on the host.
guest_disk=4G

need_vm_programs() {
  local pair missing=()
  [ "$(uname -m)" = x86_64 ] || fail "the guest is an x86-64 machine, so the host must be one too"
  for pair in qemu-system-x86_64=qemu-system-x86 mmdebstrap=mmdebstrap mke2fs=e2fsprogs; do
    command -v "${pair%=*}" >/dev/null || missing+=("${pair#*=}")
  done
  [ "${#missing[@]}" -eq 0 ] || fail "missing on this machine: tests/run programs, or apt-get install --no-install-recommends ${missing[*]}"
}

# The folder of the disk. Its name has the hash of the inputs, so that a change builds another disk.
image_folder() {
  local recipe
  recipe=$({
    cat "${BASH_SOURCE[0]}"
    printf '%s\n' "$guest_release" "$(module_folder kubernetes)" "$(module_folder containerd)"
    cat "$tools"/image/{pause,busybox}.tar
    cd "$vm_folder/guest" && find . -type f | LC_ALL=C sort | xargs grep -r ''
  } | sha256sum | cut -c1-12)
  printf '%s/%s' "$vm_tools" "$recipe"
}

# Builds disk, kernel and initrd unless they exist. Needs the cluster's programs (tests/cluster/up --build).
build_image() {
  local folder work began=$SECONDS
  folder=$(image_folder)
  [ -e "$folder/built" ] && return 0
  mkdir -p "$vm_tools"
  exec 8>>"$vm_tools/lock"
  flock -n 8 || { say "another build is running; waiting"; flock 8; }
  if [ ! -e "$folder/built" ]; then
    # Removes the disks of earlier inputs, which no run uses any more.
    find "$vm_tools" -mindepth 1 -maxdepth 1 -type d -exec rm -rf {} +
    say "building the guest's disk ($guest_release) into $folder"
    work=$folder/root
    mkdir -p "$work"
    # With four modules instead of all, the guest reads its initrd in a second.
    mmdebstrap --quiet --variant=minbase --include="$guest_packages" --dpkgopt='path-exclude=/usr/share/{doc,man,locale}/*' \
      --essential-hook='mkdir -p "$1/etc/initramfs-tools/conf.d" "$1/usr/share/initramfs-tools/modules.d" && echo MODULES=list >"$1/etc/initramfs-tools/conf.d/vm" && printf "virtio_pci\nvirtio_blk\nvirtio_net\next4\n" >"$1/usr/share/initramfs-tools/modules.d/vm"' \
      "$guest_release" "$folder/root.tar" >"$folder/log" 2>&1 8>&- 9>&- && tar -xf "$folder/root.tar" -C "$work" ||
      { tail -n 20 "$folder/log" >&2; fail "Debian could not be unpacked; the whole log: $folder/log"; }
    say "    Debian: $((SECONDS - began)) s"
    fill_root "$work" || fail "the guest's root could not be filled"
    truncate -s "$guest_disk" "$folder/disk.img"
    mke2fs -q -t ext4 -E lazy_itable_init=1,lazy_journal_init=1 -d "$work" "$folder/disk.img" >>"$folder/log" 2>&1 || { tail -n 20 "$folder/log" >&2; fail "no disk"; }
    cp "$work"/boot/vmlinuz-* "$folder/kernel" && cp "$work"/boot/initrd.img-* "$folder/initrd" || fail "the guest has no kernel"
    rm -rf "$work" "$folder/root.tar"
    touch "$folder/built"
    say "    the guest's disk: $((SECONDS - began)) s"
  fi
  exec 8>&-
}

fill_root() {
  local root=$1 program unit
  for program in kubelet containerd containerd-shim-runc-v2 ctr; do
    cp "$(module_folder kubernetes)/$program" "$root/usr/local/bin/" 2>/dev/null || cp "$(module_folder containerd)/$program" "$root/usr/local/bin/" || return 1
  done
  mkdir -p "$root/usr/local/share/images" "$root/etc/kubernetes/manifests" "$root/etc/kubernetes/volume-plugins" "$root/etc/containerd" "$root/etc/cni/net.d"
  cp "$tools"/image/{pause,busybox}.tar "$root/usr/local/share/images/" || return 1
  cp -r "$vm_folder/guest/." "$root/" || return 1
  echo vm >"$root/etc/hostname"
  # A fixed id: without one, systemd would treat the boot as the first one and apply the presets of all units.
  echo 5eed0000000040008000000000000001 >"$root/etc/machine-id"
  printf '127.0.0.1 localhost\n10.95.0.100 vm\n' >"$root/etc/hosts"
  printf 'overlay\nbr_netfilter\n' >"$root/etc/modules-load.d/node.conf"
  for unit in payload containerd images kubelet; do enable "$unit.service"; done
  enable shell.socket
  ln -sf /lib/systemd/system/systemd-networkd.service "$root/etc/systemd/system/multi-user.target.wants/"
  # Disables the login prompt and the timers, which the tests do not need.
  ln -sf /dev/null "$root/etc/systemd/system/getty.target"
  for unit in apt-daily apt-daily-upgrade dpkg-db-backup e2scrub_all fstrim; do ln -sf /dev/null "$root/etc/systemd/system/$unit.timer"; done
  ln -sf /dev/null "$root/etc/systemd/system/e2scrub_reap.service"
}
enable() { mkdir -p "$root/etc/systemd/system/multi-user.target.wants" && ln -sf "/etc/systemd/system/$1" "$root/etc/systemd/system/multi-user.target.wants/"; }
