// The commands list, models add and models remove: the models folder, which needs no server.
#include "checkpoint/models_folder.h"

#include <stdio.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/bytes_text.h"
#include "base/discovery.h"
#include "base/status_macros.h"
#include "checkpoint/checkpoint.h"
#include "tools/cli/commands.h"
#include "tools/cli/terminal.h"
#include "tools/cli/text_table.h"

namespace somnus::cli {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxFiles = 10000;  // of one model

struct FolderOptions {
  std::string name;
  bool json = false;
  bool names = false;
};

std::string Folder() { return ModelsFolder(ProcessEnvironment()); }

// The bytes of the file, or of all files directly within the directory.
int64_t BytesOf(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    const auto bytes = fs::file_size(path, error);
    return error ? 0 : static_cast<int64_t>(bytes);
  }
  int64_t sum = 0;
  int count = 0;
  for (fs::directory_iterator file(path, error);
       !error && file != fs::directory_iterator() && count < kMaxFiles; file.increment(error), ++count) {
    std::error_code no_size;
    const auto bytes = file->is_regular_file(no_size) ? file->file_size(no_size) : 0;
    if (!no_size) sum += static_cast<int64_t>(bytes);
  }
  return sum;
}

// "SmolLM2 135M" and "_model" have characters that a name has not, or not at its begin; empty: all are such.
std::string NameFor(const std::string& model_name) {
  std::string name = model_name;
  for (char& c : name) {
    if (!IsModelName(absl::StrCat("a", std::string(1, c)))) c = '-';
  }
  name.erase(name.begin(),
             std::find_if(name.begin(), name.end(), [](char c) { return IsModelName(std::string(1, c)); }));
  return name.substr(0, kMaxModelNameBytes);
}

absl::StatusOr<int> Add(const FolderOptions& options, const std::string& path) {
  // A model that cannot be read gets no name.
  const absl::StatusOr<std::unique_ptr<Checkpoint>> opened = Checkpoint::Open(path);
  if (!opened.ok()) return absl::FailedPreconditionError(absl::StrCat(path, ": ", opened.status().message()));
  const std::unique_ptr<Checkpoint>& checkpoint = *opened;
  const std::string name = options.name.empty() ? NameFor(checkpoint->config().name) : options.name;
  if (name.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": nothing of this name can be a model's name; --name=NAME gives one"));
  }
  RETURN_IF_ERROR(AddToFolder(Folder(), name, path));
  WriteModelText(absl::StrCat(name, " stands for ", path, " now: somnus serve ", name, "\n"));
  return kOk;
}

absl::StatusOr<int> Remove(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    RETURN_IF_ERROR(RemoveFromFolder(Folder(), name));
    printf("%s is no name any more; the model itself is where it was\n", Printable(name).c_str());
  }
  return kOk;
}

std::string ListJson(const std::vector<FolderModel>& models) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const FolderModel& model : models) {
    list.push_back({{"name", model.name},
                    {"path", model.path},
                    {"exists", model.exists},
                    {"bytes", model.exists ? BytesOf(model.path) : 0}});
  }
  return nlohmann::ordered_json{{"folder", Folder()}, {"models", std::move(list)}}.dump(
      -1, ' ', /*ensure_ascii=*/true, nlohmann::ordered_json::error_handler_t::replace);
}

std::string ListText(const FolderOptions& options, const std::vector<FolderModel>& models) {
  std::string text;
  if (options.names) {
    for (const FolderModel& model : models) absl::StrAppend(&text, model.name, "\n");
    return text;
  }
  if (models.empty()) return "no model has a name yet: somnus models add PATH gives one\n";
  TextTable table({"name", "size", "path"}, 1);
  for (const FolderModel& model : models)
    table.Add({Printable(model.name), model.exists ? BytesText(BytesOf(model.path)) : "gone",
               Printable(model.path)});
  return table.Text(OutputColumns());
}

absl::StatusOr<int> ListModels(const FolderOptions& options) {
  ASSIGN_OR_RETURN(const std::vector<FolderModel> models, ListFolder(Folder()));
  WriteModelText(options.json ? ListJson(models) + "\n" : ListText(options, models));
  return kOk;
}

}  // namespace

int RunList(const std::vector<std::string>& args) {
  FolderOptions o;
  const FlagTable table = {
      .program = "somnus list",
      .usage = "somnus list [flags]",
      .about =
          "Lists the models that have a name: the entries of the models folder, $SOMNUS_MODELS or\n"
          "~/.local/share/somnus/models. A name is as good as a path in serve, run, doctor and Python's "
          "LLM.\n"
          "somnus models add PATH gives a name; a directory or a .gguf file in the folder has its own.",
      .groups = {{"Flags",
                  {Flag::Switch("json", &o.json, "the same as JSON"),
                   Flag::Switch("names", &o.names, "the names alone, one in a line")}}}};
  if (const auto code = ParseCommand(table, args)) return *code;
  return ExitCode(ListModels(o));
}

int RunModelsAdd(const std::vector<std::string>& args) {
  FolderOptions o;
  const FlagTable table = {
      .program = "somnus models add",
      .usage = "somnus models add PATH [--name=NAME]",
      .about =
          "Gives the model at PATH a name, which stands for the path from then on. Nothing is copied: the\n"
          "models folder gets a link.\n\n"
          "  somnus models add ./Qwen3-0.6B --name qwen3\n"
          "  somnus serve qwen3",
      .groups = {{"Flags",
                  {Flag::Text("name", &o.name, "the name")
                       .Shows("NAME")
                       .Default("the directory's or the file's own")}}},
      .max_positional = 1};
  std::vector<std::string> paths;
  if (const auto code = ParseCommand(table, args, &paths)) return *code;
  if (paths.empty())
    return Fail(absl::InvalidArgumentError("which model? usage: somnus models add PATH [--name=NAME]"));
  return ExitCode(Add(o, paths[0]));
}

int RunModelsRemove(const std::vector<std::string>& args) {
  const FlagTable table = {.program = "somnus models remove",
                           .usage = "somnus models remove NAME...",
                           .about = "Takes names away that somnus models add has given. No model is removed.",
                           .groups = {},
                           .max_positional = kMaxListedModels};
  std::vector<std::string> names;
  if (const auto code = ParseCommand(table, args, &names)) return *code;
  if (names.empty()) return Fail(absl::InvalidArgumentError("which name? somnus list shows them"));
  return ExitCode(Remove(names));
}

}  // namespace somnus::cli
