#pragma once
// Shared libraries that are opened at run time, so that a program starts where they are not installed.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace somnus {

// Further folders to search, of the environment variable SOMNUS_LIBRARY_PATH: absolute paths separated by
// colons. In each, and in the folders nvidia/*/lib of each, where pip puts the libraries of CUDA: so
// "/venv/lib/python3.12/site-packages" is enough for those.
inline constexpr char kLibraryPathVariable[] = "SOMNUS_LIBRARY_PATH";

// The files that exist of these names in the folders of `path`, in the order of the folders and then of the
// names; last the names as they are, which the dynamic linker searches for (or opens, where they are paths).
// InvalidArgument names a folder that is
// not absolute.
absl::StatusOr<std::vector<std::string>> FindLibraries(const std::vector<std::string>& names,
                                                       absl::string_view path);

// dlopen of the first that can be opened, as SOMNUS_LIBRARY_PATH says; never closed again. Unavailable says
// why each could not.
absl::StatusOr<void*> OpenLibrary(const std::vector<std::string>& names);

}  // namespace somnus
