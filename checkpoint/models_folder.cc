#include "checkpoint/models_folder.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/flags.h"
#include "base/status_macros.h"

namespace somnus {
namespace {

namespace fs = std::filesystem;

constexpr absl::string_view kGguf = ".gguf";

std::string ValueOf(const Environment& environment, const char* name) {
  const auto found = environment.find(name);
  return found == environment.end() ? "" : found->second;
}

// The entry as a model; nullopt: the entry is none.
std::optional<FolderModel> ReadEntry(const fs::path& entry) {
  std::error_code error;
  FolderModel model;
  model.name = std::string(absl::StripSuffix(entry.filename().string(), kGguf));
  if (!IsModelName(model.name)) return std::nullopt;
  model.path = entry.string();
  model.is_link = fs::is_symlink(entry, error);
  model.exists = fs::exists(entry, error);
  if (model.is_link) {
    const fs::path target = fs::read_symlink(entry, error);
    model.path = (target.is_absolute() ? target : entry.parent_path() / target).lexically_normal().string();
    return model;
  }
  const bool is_model = fs::is_directory(entry, error) ? fs::exists(entry / "config.json", error)
                                                       : absl::EndsWith(entry.filename().string(), kGguf);
  if (!is_model) return std::nullopt;
  return model;
}

// The model of this name; nullopt: there is none.
std::optional<FolderModel> FindEntry(const std::string& folder, const std::string& name) {
  std::error_code error;
  for (const std::string& file : {name, absl::StrCat(name, kGguf)}) {
    const fs::path entry = fs::path(folder) / file;
    const bool is_there = fs::exists(fs::symlink_status(entry, error));
    if (!is_there) continue;
    if (std::optional<FolderModel> model = ReadEntry(entry)) return model;
  }
  return std::nullopt;
}

absl::Status BadName(const std::string& name) {
  return absl::InvalidArgumentError(
      absl::StrCat("'", name, "' is no name for a model: at most ", kMaxModelNameBytes,
                   " letters, digits and . _ - : +, of which the first is a letter or a digit"));
}

// The link appears whole or not at all.
absl::Status Link(const fs::path& target, const fs::path& entry) {
  const fs::path fresh = entry.parent_path() / absl::StrCat(".new-", getpid());
  std::error_code error;
  fs::remove(fresh, error);
  fs::create_symlink(target, fresh, error);
  if (!error) fs::rename(fresh, entry, error);
  if (!error) return absl::OkStatus();
  std::error_code ignored;
  fs::remove(fresh, ignored);
  return absl::FailedPreconditionError(
      absl::StrCat("the models folder ", entry.parent_path().string(), ": ", error.message()));
}

}  // namespace

std::string ModelsFolder(const Environment& environment) {
  if (const std::string folder = ValueOf(environment, "SOMNUS_MODELS"); !folder.empty()) return folder;
  if (const std::string data = ValueOf(environment, "XDG_DATA_HOME"); absl::StartsWith(data, "/"))
    return absl::StrCat(data, "/somnus/models");
  const std::string home = ValueOf(environment, "HOME");
  return home.empty() ? "" : absl::StrCat(home, "/.local/share/somnus/models");
}

bool IsModelName(absl::string_view name) {
  const auto fits = [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || absl::StrContains("._-:+", c);
  };
  return !name.empty() && name.size() <= kMaxModelNameBytes &&
         absl::ascii_isalnum(static_cast<unsigned char>(name[0])) &&
         std::all_of(name.begin(), name.end(), fits);
}

absl::StatusOr<std::vector<FolderModel>> ListFolder(const std::string& folder) {
  std::vector<FolderModel> models;
  std::error_code error;
  if (folder.empty()) return models;
  fs::directory_iterator entries(folder, error);
  if (error == std::errc::no_such_file_or_directory) return models;
  for (; !error && entries != fs::directory_iterator() && models.size() < kMaxListedModels;
       entries.increment(error)) {
    if (std::optional<FolderModel> model = ReadEntry(entries->path())) models.push_back(*std::move(model));
  }
  if (error)
    return absl::FailedPreconditionError(absl::StrCat("the models folder ", folder, ": ", error.message()));
  std::sort(models.begin(), models.end(),
            [](const FolderModel& a, const FolderModel& b) { return a.name < b.name; });
  return models;
}

absl::StatusOr<std::string> FindModelPath(const std::string& folder, const std::string& text) {
  std::error_code error;
  if (folder.empty() || !IsModelName(text) || fs::exists(text, error)) return text;
  if (const std::optional<FolderModel> model = FindEntry(folder, text)) {
    if (model->exists) return model->path;
    return absl::NotFoundError(
        absl::StrCat("the model '", text, "' of the models folder is not at ", model->path, " any more"));
  }
  const absl::StatusOr<std::vector<FolderModel>> models = ListFolder(folder);
  if (!models.ok()) return text;
  std::vector<std::string> names;
  for (const FolderModel& model : *models) names.push_back(model.name);
  const std::string nearest = NearestName(text, names);
  if (nearest.empty()) return text;
  return absl::InvalidArgumentError(
      absl::StrCat("there is no file, directory or model named '", text, "': did you mean ", nearest, "?"));
}

absl::Status AddToFolder(const std::string& folder, const std::string& name, const std::string& path) {
  if (!IsModelName(name)) return BadName(name);
  if (folder.empty())
    return absl::FailedPreconditionError("there is no models folder: SOMNUS_MODELS or HOME names it");
  std::error_code error;
  const fs::path target = fs::canonical(path, error);
  if (error) return absl::NotFoundError(absl::StrCat(path, ": ", error.message()));
  if (const std::optional<FolderModel> there = FindEntry(folder, name)) {
    if (there->path == target.string()) return absl::OkStatus();
    return absl::AlreadyExistsError(
        absl::StrCat("the name '", name, "' stands for ", there->path, " already; --name gives another one"));
  }
  fs::create_directories(folder, error);
  if (error)
    return absl::FailedPreconditionError(absl::StrCat("the models folder ", folder, ": ", error.message()));
  return Link(target, fs::path(folder) / name);
}

absl::Status RemoveFromFolder(const std::string& folder, const std::string& name) {
  if (!IsModelName(name)) return BadName(name);
  const std::optional<FolderModel> model = folder.empty() ? std::nullopt : FindEntry(folder, name);
  if (!model.has_value())
    return absl::NotFoundError(absl::StrCat("there is no model named '", name, "'; somnus list shows them"));
  if (!model->is_link)
    return absl::FailedPreconditionError(absl::StrCat(
        "'", name, "' is the model itself, not a link to it: remove ", model->path, " yourself"));
  std::error_code error;
  for (const std::string& file : {name, absl::StrCat(name, kGguf)}) {
    const fs::path entry = fs::path(folder) / file;
    if (fs::is_symlink(entry, error)) {
      fs::remove(entry, error);
      break;
    }
  }
  if (error)
    return absl::FailedPreconditionError(absl::StrCat("the models folder ", folder, ": ", error.message()));
  return absl::OkStatus();
}

}  // namespace somnus
