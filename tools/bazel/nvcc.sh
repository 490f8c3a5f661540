#!/bin/sh
# nvcc whose objects are the same in every folder and every time: nvcc.sh NVCC SOURCE ARGUMENTS... (without SOURCE in the arguments)
#
# Three things in an object of nvcc's change with each run under Bazel, whose sandboxes are numbered: a hash of the source's absolute
# path in the names of unnamed namespaces, the working directory in the table of lines (--config=cuda_lines), and the process id in
# the name of a temporary file, which the symbol table has.
set -e
nvcc=$1
source=$2
shift 2
kept=$(mktemp -d)
trap 'rm -rf "$kept"' EXIT
PWD=/proc/self/cwd "$nvcc" --keep --keep-dir "$kept" -Xcudafe "--orig_src_path_name=$source" "$@" "$source"
