#include "base/shared_library.h"

#include <dlfcn.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace somnus {
namespace {

namespace fs = std::filesystem;

// Returns the folder itself, then its nvidia/*/lib in the order of their names. A folder that cannot be read
// counts as empty.
std::vector<fs::path> FoldersIn(const fs::path& folder) {
  std::vector<fs::path> folders;
  std::error_code error;
  for (fs::directory_iterator it(folder / "nvidia", error), end; !error && it != end; it.increment(error)) {
    folders.push_back(it->path() / "lib");
  }
  std::sort(folders.begin(), folders.end());
  folders.insert(folders.begin(), folder);
  return folders;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> FindLibraries(const std::vector<std::string>& names,
                                                       absl::string_view path) {
  std::vector<std::string> files;
  for (absl::string_view text : absl::StrSplit(path, ':', absl::SkipEmpty())) {
    const fs::path listed{std::string(text)};
    if (!listed.is_absolute()) {
      return absl::InvalidArgumentError(
          absl::StrCat(kLibraryPathVariable, ": '", text, "' is not an absolute path"));
    }
    for (const fs::path& folder : FoldersIn(listed)) {
      for (const std::string& name : names) {
        if (name.find('/') != std::string::npos) continue;
        std::error_code error;
        if (fs::is_regular_file(folder / name, error)) files.push_back(folder / name);
      }
    }
  }
  files.insert(files.end(), names.begin(), names.end());
  return files;
}

absl::StatusOr<void*> OpenLibrary(const std::vector<std::string>& names) {
  const char* const path = getenv(kLibraryPathVariable);
  absl::StatusOr<std::vector<std::string>> files = FindLibraries(names, path == nullptr ? "" : path);
  if (!files.ok()) return files.status();
  std::string reasons;
  for (const std::string& file : *files) {
    if (void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
    const char* reason = dlerror();
    absl::StrAppend(&reasons, reasons.empty() ? "" : "; ", reason == nullptr ? file : reason);
  }
  return absl::UnavailableError(reasons);
}

}  // namespace somnus
