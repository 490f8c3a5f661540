#include "coordinator/flags/serve_config.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/text_format.h>
#include <stdlib.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "proto/serve_config.pb.h"
#include "proto/text_file.h"

namespace somnus {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using Lines = google::protobuf::TextFormat::ParseInfoTree;

constexpr absl::string_view kName = "name", kPath = "path", kPinned = "pinned", kFlags = "flags";
constexpr absl::string_view kServedModelName = "served_model_name";

// A group of the table is about all models, or about each single model except for some of the group's flags.
constexpr absl::string_view kGroupsOfOneModel[] = {
    "Model",           "Embeddings", "Workers",           "KV cache and scheduling", "Speculative decoding",
    "Adapters (LoRA)", "Sleep",      "Times and failures"};
constexpr absl::string_view kOfAllModels[] = {"run-dir",        "cluster-host",     "cluster-port",
                                              "sleep-arrivals", "shutdown-timeout", "stay-after-failure"};
// Flags that name the model that the flag is about.
constexpr absl::string_view kOfNamedModels[] = {"model", "served-model-name", "pin-model", "model-priority"};

template <typename Names>
bool Has(const Names& names, absl::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

// A field that is set, or an entry of `flags`.
struct Setting {
  absl::string_view field;
  std::string value;
  int line = 0;  // counted from 1
};

std::string ValueOf(const Message& message, const FieldDescriptor* field) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_BOOL)
    return reflection.GetBool(message, field) ? "true" : "false";
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_INT32)
    return absl::StrCat(reflection.GetInt32(message, field));
  return reflection.GetString(message, field);
}

std::vector<Setting> SettingsOf(const Message& message, const Lines& lines) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  std::vector<Setting> settings;
  for (const FieldDescriptor* field : fields) {
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) continue;
    const int count = field->is_repeated() ? reflection.FieldSize(message, field) : 1;
    for (int i = 0; i < count; ++i) {
      const int index = field->is_repeated() ? i : -1;
      std::string value =
          field->is_repeated() ? reflection.GetRepeatedString(message, field, i) : ValueOf(message, field);
      settings.push_back({field->name(), std::move(value), lines.GetLocation(field, index).line + 1});
    }
  }
  return settings;
}

std::string FlagName(absl::string_view field) { return absl::StrReplaceAll(field, {{"_", "-"}}); }

// The setting as one argument of a command line.
std::string ArgOf(const Setting& setting) {
  if (setting.field == kFlags) return setting.value;
  return absl::StrCat("--", FlagName(setting.field), "=", setting.value);
}

// A shell puts the home's path before "/..." where a command line has "~/...".
std::string FromHome(const std::string& path) {
  const char* home = getenv("HOME");
  return home != nullptr && absl::StartsWith(path, "~/") ? absl::StrCat(home, path.substr(1)) : path;
}

class Config {
 public:
  explicit Config(std::string path) : path_(std::move(path)) {}

  absl::Status Read() {
    const absl::Status status = ReadTextFile(path_, &config_, &lines_);
    if (status.ok()) return status;
    return absl::InvalidArgumentError(
        absl::StrCat("--config: ", absl::IsNotFound(status) ? "" : path_ + ": ", status.message()));
  }

  // The file's settings of all models; then the models, with paths alone.
  absl::Status AddTo(Flags* flags) const {
    const FlagTable table = Once(CoordinatorFlags(flags), [](const FlagGroup&, const Flag& flag) {
      if (flag.name == "config") return "is not for the file itself";
      return Has(kOfNamedModels, flag.name) ? "is about one model: say it in `models`" : "";
    });
    for (const Setting& setting : SettingsOf(config_, lines_)) RETURN_IF_ERROR(Set(setting, table));
    std::set<std::string> names;
    for (int i = 0; i < config_.models_size(); ++i) {
      const v1::ServeConfig::Model& model = config_.models(i);
      RETURN_IF_ERROR(CheckName(i, &names));
      const Setting path = {kPath, absl::StrCat(model.name(), "=", FromHome(model.path())),
                            LineOf(i, "path")};
      RETURN_IF_ERROR(Set(path, CoordinatorFlags(flags), "model"));
    }
    return absl::OkStatus();
  }

  // The file's settings of single models. `flags` have the settings of the command line, and the command
  // line's models after the file's.
  absl::Status AddOwn(Flags* flags) const {
    for (int i = 0; i < config_.models_size(); ++i) {
      ModelPath& model = flags->models[i];
      model.source = absl::StrCat("--config: ", path_, ":", LineOf(i, "name"), ": ");
      Flags checked = *flags;
      const FlagTable own = Once(CoordinatorFlags(&checked), [](const FlagGroup& group, const Flag& flag) {
        if (Has(kOfNamedModels, flag.name)) return "is a field of the model";
        const bool fits = Has(kGroupsOfOneModel, group.title) && !Has(kOfAllModels, flag.name);
        return fits && flag.name != "config" ? "" : "is about all models: say it outside of `models`";
      });
      const FlagTable all = CoordinatorFlags(flags);
      for (const Setting& setting : SettingsOf(config_.models(i), LinesOf(i))) {
        if (setting.field == kName || setting.field == kPath) continue;
        if (setting.field == kServedModelName) {
          RETURN_IF_ERROR(AddAlias(setting, &model));
        } else if (setting.field == kPinned) {
          SetPinned(model.name, setting.value == "true", flags);
        } else if (IsBesideOthers(setting.field)) {
          const std::string named = absl::StrCat(model.name, "=", setting.value);
          RETURN_IF_ERROR(Set({setting.field, named, setting.line}, all,
                              absl::StrCat("model-", FlagName(setting.field))));
        } else {
          RETURN_IF_ERROR(Set(setting, own));
          model.flags.push_back(ArgOf(setting));
        }
      }
    }
    return absl::OkStatus();
  }

 private:
  static bool IsBesideOthers(absl::string_view field) {
    return field == "priority" || field == "ttft_target" || field == "tpot_target";
  }
  static void SetPinned(const std::string& name, bool pinned, Flags* flags) {
    if (pinned) {
      flags->pinned_models.insert(name);
    } else {
      flags->pinned_models.erase(name);
    }
  }

  // The table, in which each flag may be set once; and not at all where `refuses` says why, as a setter does.
  template <typename Refuses>
  static FlagTable Once(FlagTable table, const Refuses& refuses) {
    for (FlagGroup& group : table.groups) {
      for (Flag& flag : group.flags) {
        flag.set = [set = flag.set, refusal = std::string(refuses(group, flag)),
                    is_set = std::make_shared<bool>(false)](const std::string& value) {
          if (!refusal.empty()) return absl::InvalidArgumentError(refusal);
          if (std::exchange(*is_set, true)) return absl::InvalidArgumentError("is the second value");
          return set(value);
        };
      }
    }
    return table;
  }

  const Lines& LinesOf(int model) const {
    return *lines_.GetTreeForNested(v1::ServeConfig::descriptor()->FindFieldByName("models"), model);
  }
  // The line of the model where the model has no such field.
  int LineOf(int model, const std::string& field) const {
    const FieldDescriptor* models = v1::ServeConfig::descriptor()->FindFieldByName("models");
    const int line =
        LinesOf(model).GetLocation(v1::ServeConfig::Model::descriptor()->FindFieldByName(field), -1).line;
    return 1 + (line >= 0 ? line : lines_.GetLocation(models, model).line);
  }

  absl::Status Refuse(int line, absl::string_view field, absl::string_view why) const {
    return absl::InvalidArgumentError(absl::StrCat("--config: ", path_, ":", line, ": ", field, ": ", why));
  }

  absl::Status CheckName(int model, std::set<std::string>* names) const {
    const std::string& name = config_.models(model).name();
    const int line = LineOf(model, "name");
    if (name.empty()) return Refuse(line, kName, "a model needs one");
    if (name.find_first_of("=/") != std::string::npos)
      return Refuse(line, kName, absl::StrCat("'", name, "' has a '=' or a '/'"));
    if (!names->insert(name).second) return Refuse(line, kName, absl::StrCat("two models are named ", name));
    if (config_.models(model).path().empty())
      return Refuse(LineOf(model, "path"), kPath, "a model needs one");
    return absl::OkStatus();
  }

  absl::Status AddAlias(const Setting& setting, ModelPath* model) const {
    if (setting.value.empty()) return Refuse(setting.line, setting.field, "is empty");
    if (setting.value == model->name || Has(model->aliases, setting.value))
      return Refuse(setting.line, setting.field,
                    absl::StrCat("the model is named ", setting.value, " already"));
    if (model->aliases.size() + 2 > kMaxServedNames)
      return Refuse(setting.line, setting.field, absl::StrCat("more than ", kMaxServedNames, " names"));
    model->aliases.push_back(setting.value);
    return absl::OkStatus();
  }

  // Sets the flag that the field is named after, or `flag`.
  absl::Status Set(const Setting& setting, const FlagTable& table, std::string flag = "") const {
    std::string arg = ArgOf(setting);
    if (!flag.empty()) arg = absl::StrCat("--", flag, "=", setting.value);
    if (!absl::StartsWith(arg, "--") || arg.size() == 2 || arg == "--help" || arg == "--version")
      return Refuse(setting.line, setting.field, absl::StrCat("'", arg, "' is not --NAME=VALUE"));
    const absl::Status status = ParseArgs(table, {arg}).status();
    if (status.ok()) return status;
    absl::string_view why = status.message();
    if (setting.field != kFlags)
      absl::ConsumePrefix(&why, absl::StrCat("--", flag.empty() ? FlagName(setting.field) : flag, ": "));
    return Refuse(setting.line, setting.field, why);
  }

  const std::string path_;
  v1::ServeConfig config_;
  Lines lines_;
};

}  // namespace

absl::Status AddServeConfig(const std::vector<std::string>& args, Flags* flags) {
  if (flags->config.empty()) return absl::OkStatus();
  Config config(flags->config);
  RETURN_IF_ERROR(config.Read());
  *flags = Flags();
  RETURN_IF_ERROR(config.AddTo(flags));
  RETURN_IF_ERROR(ParseArgs(CoordinatorFlags(flags), args).status());
  return config.AddOwn(flags);
}

}  // namespace somnus
