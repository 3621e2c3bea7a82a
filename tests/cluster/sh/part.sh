# Parts: the processes of the cluster. Each has a folder with what runs it (`run`), its process (`pid`) and its log.
# shellcheck shell=bash

# A process is its number and the time it was started: a number alone may belong to somebody else by now.
started() { local line; line=$(cat "/proc/$1/stat" 2>/dev/null) || return 1; set -- ${line##*) }; [ "$1" != Z ] && printf '%s' "${20}"; }

parts() { [ -d "$state/part" ] && ls "$state/part"; }

# The number of a part's process, if it runs.
part_pid() {
  local pid begin
  read -r pid begin 2>/dev/null <"$state/part/$1/pid" || return 1
  [ "$(started "$pid")" = "$begin" ] && printf '%s' "$pid"
}

# Writes what runs a part: define_part NAME COMMAND... (the command is run by exec, with its words as they are here)
define_part() {
  local folder=$state/part/$1
  mkdir -p "$folder"
  { printf '#!/usr/bin/env bash\n# How this part is run.\nexport PATH=%q\nexec' "$PATH"; printf ' %q' "${@:2}"; printf '\n'; } >"$folder/run"
  chmod +x "$folder/run"
}

start_part() {
  local folder=$state/part/$1 pid
  part_pid "$1" >/dev/null && return 0
  # Without the lock's descriptor: a part would keep it for ever.
  env "$mark" setsid "$folder/run" >>"$folder/log" 2>&1 </dev/null 9>&- &
  pid=$!
  printf '%s %s\n' "$pid" "$(started "$pid")" >"$folder/pid"
}

# Waits until a part does what the command asks; shows the end of its log if it does not, or ends.
await_part() {
  local name=$1 seconds=$2 deadline=$((SECONDS + $2))
  shift 2
  until "$@" >/dev/null 2>&1; do
    if ! part_pid "$name" >/dev/null; then
      say "$name ended; the end of its log:" >&2
    elif [ "$SECONDS" -ge "$deadline" ]; then
      say "$name is not ready after $seconds s; the end of its log:" >&2
    else
      sleep 0.1
      continue
    fi
    tail -n 20 "$state/part/$name/log" | cut -c1-400 | sed 's/^/    /' >&2
    return 1
  done
}

# Sends a signal and waits for the end: end_part NAME SIGNAL SECONDS
end_part() {
  local pid
  pid=$(part_pid "$1") || return 0
  kill -"$2" "$pid" 2>/dev/null
  await "$3" "the end of $1 (process $pid) after SIG$2" ended "$1"
}
ended() { ! part_pid "$1" >/dev/null; }

# Every process that carries our mark.
marked_processes() { grep -lzxF -- "$mark" /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3; }

# Our cgroup in every hierarchy: one with cgroup v2, one for each controller with v1.
cgroups() { find /sys/fs/cgroup -maxdepth 2 -type d -name "$cgroup" 2>/dev/null; }

# Every process in our cgroups: what runs in containers does not carry the mark. A process that this namespace does not
# see reads as 0, and a signal to 0 would reach ourselves.
contained_processes() {
  local folders
  mapfile -t folders < <(cgroups)
  [ "${#folders[@]}" -eq 0 ] || find "${folders[@]}" -name cgroup.procs -exec cat {} + 2>/dev/null | sort -un | grep -vx 0
}
