#pragma once
// The models folder: short names in the place of paths. An entry of the folder is a symbolic link to a model
// (somnus models add), a Hugging Face directory, or a file NAME.gguf. Functions are thread safe; nothing is
// cached. Errors name the folder or the name, never a path that the caller has not given or put there.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/discovery.h"

namespace somnus {

inline constexpr size_t kMaxModelNameBytes = 100;
inline constexpr size_t kMaxListedModels = 10000;

// SOMNUS_MODELS, else $XDG_DATA_HOME/somnus/models, else ~/.local/share/somnus/models; empty: the environment
// names no home.
std::string ModelsFolder(const Environment& environment);

// Letters, digits, '.', '_', '-', ':' and '+', of which the first is a letter or a digit.
bool IsModelName(absl::string_view name);

struct FolderModel {
  std::string name;
  std::string path;      // of the model itself: where a link leads
  bool is_link = false;  // the folder has a link alone, and not the model
  bool exists = true;    // false: the link leads nowhere
};

// In the order of names. A folder that is not there has no models. Entries that are no models are left out,
// and so are those beyond kMaxListedModels.
absl::StatusOr<std::vector<FolderModel>> ListFolder(const std::string& folder);

// `text` where that is a file or a directory, or cannot be a name; else the path of the model of this name.
// Without such a model: InvalidArgument with a similar name where there is one, else `text`, for which the
// reader of checkpoints has an error. NotFound: the model is not there any more.
absl::StatusOr<std::string> FindModelPath(const std::string& folder, const std::string& text);

// Puts a link to `path` into the folder, which is made where it is missing. InvalidArgument: no name;
// NotFound: nothing is at `path`; AlreadyExists: the name stands for another model.
absl::Status AddToFolder(const std::string& folder, const std::string& name, const std::string& path);

// Removes a link; models themselves are never removed. NotFound: there is no such name; FailedPrecondition:
// the model itself is in the folder.
absl::Status RemoveFromFolder(const std::string& folder, const std::string& name);

}  // namespace somnus
