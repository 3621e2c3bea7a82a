# The changes that the cluster makes to the machine outside its state folder, and their removal.
# shellcheck shell=bash

# Makes the folders for the mounts of a node's namespace, and the addresses. It records each before it makes it.
occupy() {
  local view path missing number
  for view in "${node_views[@]}"; do
    path=${view% *} missing=()
    while [ ! -e "$path" ]; do missing+=("$path"); path=$(dirname "$path"); done
    [ "${#missing[@]}" -eq 0 ] || { printf '%s\n' "${missing[@]}" | tac >>"$state/folders"; mkdir -p "${missing[0]}"; }
  done
  # Pods of two nodes reach each other through the machine, which must forward packets.
  cat /proc/sys/net/ipv4/ip_forward >"$state/ip_forward"
  add_address "$api_address"
  for number in $(seq "$1"); do add_address "$(node_address "$number")"; done
}

add_address() {
  ip -o addr show | grep -q " inet $1/" && fail "the address $1 is in use on this machine, and not by a cluster of ours"
  printf '%s\n' "$1" >>"$state/addresses"
  ip addr add "$1/32" dev lo || fail "lo did not take the address $1"
}

# Whether there are traces of a cluster, running or left by a killed run.
anything() { [ -d "$state" ] || [ -n "$(cgroups)" ] || [ -n "$(marked_processes)" ]; }

# Takes everything down, in any state, and prints what it removed.
clean() {
  local began=$SECONDS parts name folder left=0
  # Kubelets first, because they would restart the processes that are ended below.
  mapfile -t parts < <(parts | sort -r)
  for name in "${parts[@]}"; do [[ $name != *-kubelet ]] || signal_part "$name" KILL; done
  local contained
  contained=$(contained_processes | wc -l)
  await 20 "the end of the processes in containers" kill_contained || left=1
  [ "$contained" -eq 0 ] || say "    killed $contained processes in containers"
  local marked
  marked=$(marked_processes | wc -l)
  await 20 "the end of the cluster's processes" kill_marked || left=1
  [ "$marked" -eq 0 ] || say "    killed $marked processes of the cluster"
  # A killed shim may have left a mount in the machine's own mount namespace.
  while read -r folder; do umount -l "$folder" && say "    unmounted $folder"; done < <(awk -v under="$state/" 'index($2, under) == 1 { print $2 }' /proc/mounts | sort -r)
  await 20 "the cluster's cgroups to be empty" remove_cgroups || left=1
  release
  [ "$left" -eq 0 ] || fail "something is left (above); what is known of it stays in $state"
  [ ! -d "$state" ] || { rm -rf --one-file-system "$state" && say "    removed $state"; }
  [ ! -e "$state" ] || fail "$state could not be removed"
  say "down, $((SECONDS - began)) s"
}

signal_part() { local pid; pid=$(part_pid "$1") && kill -"$2" "$pid" 2>/dev/null; }

kill_contained() {
  local processes
  processes=$(contained_processes)
  [ -n "$processes" ] || return 0
  # A paused container does not handle signals, so thaw it.
  find /sys/fs/cgroup -maxdepth 1 -name freezer -exec find {}/"$cgroup" -name freezer.state \; 2>/dev/null | while read -r file; do echo THAWED >"$file"; done
  # shellcheck disable=SC2086  # one word per process
  kill -KILL $processes 2>/dev/null
  return 1
}

kill_marked() {
  local processes
  processes=$(marked_processes)
  [ -n "$processes" ] || return 0
  # shellcheck disable=SC2086
  kill -KILL $processes 2>/dev/null
  return 1
}

remove_cgroups() {
  local folders
  mapfile -t folders < <(cgroups)
  [ "${#folders[@]}" -eq 0 ] || find "${folders[@]}" -depth -type d -exec rmdir {} + 2>/dev/null
  [ -z "$(cgroups)" ]
}

# Restores the machine: addresses, forwarding, folders.
release() {
  local address folder
  if [ -e "$state/addresses" ]; then
    # The address of a guest has a route that is not removed with the address (tests/vm).
    while read -r address; do ip addr del "$address/32" dev lo; ip route del local "$address" dev lo table local; done <"$state/addresses" 2>/dev/null
    say "    removed from lo: $(paste -sd' ' "$state/addresses")"
  fi
  [ ! -e "$state/ip_forward" ] || cat "$state/ip_forward" >/proc/sys/net/ipv4/ip_forward
  [ -e "$state/folders" ] || return 0
  while read -r folder; do
    [ ! -d "$folder" ] || rmdir "$folder" || say "    $folder stays: something else is in it"
  done < <(tac "$state/folders")
}
