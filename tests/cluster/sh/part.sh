# Parts: the processes of the cluster. Each has a folder with its start script (`run`), its process (`pid`) and its log.
# shellcheck shell=bash

# A process is identified by its id and its start time, because the id may later belong to another process.
started() { local line; line=$(cat "/proc/$1/stat" 2>/dev/null) || return 1; set -- ${line##*) }; [ "$1" != Z ] && printf '%s' "${20}"; }

parts() { [ -d "$state/part" ] && ls "$state/part"; }

# The process id of a part, if it runs.
part_pid() {
  local pid begin
  read -r pid begin 2>/dev/null <"$state/part/$1/pid" || return 1
  [ "$(started "$pid")" = "$begin" ] && printf '%s' "$pid"
}

# define_part NAME COMMAND...: writes the start script of a part, which runs the command with exec and the same words
define_part() {
  local folder=$state/part/$1
  mkdir -p "$folder"
  { printf '#!/usr/bin/env bash\n# How this part is run.\nexport PATH=%q\nexec' "$PATH"; printf ' %q' "${@:2}"; printf '\n'; } >"$folder/run"
  chmod +x "$folder/run"
}

start_part() {
  local folder=$state/part/$1 pid
  part_pid "$1" >/dev/null && return 0
  # Close the file descriptor of the lock, or the part would hold the lock forever.
  env "$mark" setsid "$folder/run" >>"$folder/log" 2>&1 </dev/null 9>&- &
  pid=$!
  printf '%s %s\n' "$pid" "$(started "$pid")" >"$folder/pid"
}

# Waits until a command succeeds. If it does not, or if the part ends, shows the end of the part's log.
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

# Every process with the cluster's mark.
marked_processes() { grep -lzxF -- "$mark" /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3; }

# The cluster's cgroup in every hierarchy: a single cgroup with cgroup v2, one for each controller with v1.
cgroups() { find /sys/fs/cgroup -maxdepth 2 -type d -name "$cgroup" 2>/dev/null; }

# Every process in the cluster's cgroups, because processes in containers do not have the mark. A process of a PID namespace that is
# not visible here is listed as 0, and a signal to 0 would reach this script itself.
contained_processes() {
  local folders
  mapfile -t folders < <(cgroups)
  [ "${#folders[@]}" -eq 0 ] || find "${folders[@]}" -name cgroup.procs -exec cat {} + 2>/dev/null | sort -un | grep -vx 0
}
