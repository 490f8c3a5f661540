# shellcheck shell=bash
# Sourced, behind env.sh, by scripts that take binaries to a machine without the toolchain.

# bundle_binaries DIR TARGET...: copies the programs of the targets into DIR, laid out as in bazel-bin, with the
# libraries that the programs need at run time, except the C library and CUDA's own, in DIR/lib.
bundle_binaries() {
  local dir=$1 target path
  shift
  mkdir -p "$dir/lib" && dir=$(cd "$dir" && pwd)
  for target in "$@"; do
    path=${target#//} path=${path/://}
    mkdir -p "$dir/$(dirname "$path")"
    ldd "bazel-bin/$path" | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' |
      grep -Ev '/(libc|libm|libdl|librt|libpthread|ld-linux[^/]*|libcuda|libcublas[^/]*|libnccl)\.so' |
      xargs -r cp -Lnt "$dir/lib"
    install -m 755 "bazel-bin/$path" "$dir/$path" || die "there is no bazel-bin/$path"
  done
  find "$dir" -type f \( -name '*.so*' -o -perm -u+x \) -exec chmod u+w {} + -exec strip --strip-unneeded {} + 2>/dev/null
}
