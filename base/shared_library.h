#pragma once
// Shared libraries that are opened at run time, so that a program also starts without them.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace somnus {

// The environment variable that names further folders to search: absolute paths separated by colons. Each
// folder is searched, and so are its folders nvidia/*/lib, where pip puts the libraries of CUDA:
// "/venv/lib/python3.12/site-packages" is enough for CUDA.
inline constexpr char kLibraryPathVariable[] = "SOMNUS_LIBRARY_PATH";

// Returns the files called `names` that exist in the folders of `path`, in the order of the folders and then
// of the names; then the plain names, which the dynamic linker searches for (or opens, if a name is a path).
// InvalidArgument names a folder that is not absolute.
absl::StatusOr<std::vector<std::string>> FindLibraries(const std::vector<std::string>& names,
                                                       absl::string_view path);

// Opens (dlopen) the first file of FindLibraries(names, $SOMNUS_LIBRARY_PATH) that can be opened; the library
// is never closed. Unavailable says why each could not be opened.
absl::StatusOr<void*> OpenLibrary(const std::vector<std::string>& names);

}  // namespace somnus
