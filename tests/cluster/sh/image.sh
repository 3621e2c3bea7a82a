# Images without a registry: an OCI layout with one layer in a tar file, for `ctr images import`.
# shellcheck shell=bash

# make_image OUT NAME:TAG ENTRYPOINT FILE=PATH...: if FILE is `@TARGET`, PATH is a symbolic link. ${image_variables[@]} are
# further variables of the image, besides PATH.
make_image() {
  local out=$1 name=$2 entry=$3 pair root=$1.root variables
  shift 3
  variables=$(printf ',"%s"' "PATH=/bin" "${image_variables[@]}")
  rm -rf "$root" && mkdir -p "$root/layer"/{bin,dev,etc,proc,sys,tmp} "$root/oci/blobs/sha256"
  for pair in "$@"; do
    mkdir -p "$(dirname "$root/layer${pair#*=}")"
    case $pair in
      @*) pair=${pair#@}; ln -s "${pair%%=*}" "$root/layer${pair#*=}" ;;
      *) cp -L "${pair%%=*}" "$root/layer${pair#*=}" ;;
    esac
  done
  tar -C "$root/layer" --owner=0 --group=0 --sort=name --mtime=@0 -cf "$root/blob" . || return 1
  local layer config manifest architecture
  layer=$(blob "$root")
  case $(uname -m) in x86_64) architecture=amd64 ;; aarch64) architecture=arm64 ;; *) architecture=$(uname -m) ;; esac
  printf '{"architecture":"%s","os":"linux","config":{"Entrypoint":["%s"],"Env":[%s]},"rootfs":{"type":"layers","diff_ids":["%s"]}}' \
    "$architecture" "$entry" "${variables#,}" "${layer% *}" >"$root/blob"
  config=$(blob "$root")
  printf '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":%s,"layers":[%s]}' \
    "$(descriptor config.v1+json "$config")" "$(descriptor layer.v1.tar "$layer")" >"$root/blob"
  manifest=$(descriptor manifest.v1+json "$(blob "$root")")
  printf '{"schemaVersion":2,"manifests":[%s,"annotations":{"io.containerd.image.name":"%s","org.opencontainers.image.ref.name":"%s"}}]}' \
    "${manifest%\}}" "$name" "${name##*:}" >"$root/oci/index.json"
  printf '{"imageLayoutVersion":"1.0.0"}' >"$root/oci/oci-layout"
  tar -C "$root/oci" -cf "$out.new" . && mv "$out.new" "$out" && rm -rf "$root"
}

# Stores ROOT/blob under its hash, and prints digest and size.
blob() {
  local digest size
  digest=$(sha256sum <"$1/blob" | cut -d' ' -f1)
  size=$(stat -c %s "$1/blob")
  mv "$1/blob" "$1/oci/blobs/sha256/$digest"
  printf 'sha256:%s %s' "$digest" "$size"
}
descriptor() { printf '{"mediaType":"application/vnd.oci.image.%s","digest":"%s","size":%s}' "$1" "${2% *}" "${2#* }"; }

# Makes the images that every node has: the pause image of sandboxes, and busybox for test pods.
build_images() {
  local folder=$tools/image name links=()
  [ -e "$folder/built" ] && [ "$folder/built" -nt "$cluster_folder/program/pause.c" ] && return 0
  say "building the images pause and busybox into $folder"
  mkdir -p "$folder"
  "${CC:-cc}" -static -O2 -o "$folder/pause" "$cluster_folder/program/pause.c" || fail "pause.c could not be compiled: apt-get install gcc libc6-dev"
  make_image "$folder/pause.tar" registry.local/pause:1 /pause "$folder/pause=/pause" || fail "no image of pause"
  for name in sh sleep env cat ls echo id wget nc ps kill sync dd seq mkdir rm touch stat head tail grep true false date; do links+=("@busybox=/bin/$name"); done
  make_image "$folder/busybox.tar" registry.local/busybox:1 /bin/sh "$(debian_folder)/bin/busybox=/bin/busybox" "${links[@]}" || fail "no image of busybox"
  touch "$folder/built"
}
