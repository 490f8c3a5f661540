#include "checkpoint/sentence_modules.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "checkpoint/json_file.h"
#include "checkpoint/json_reader.h"
#include "checkpoint/tokenizer/hf_tokenizer_files.h"

namespace somnus {
namespace {

using nlohmann::json;
using Pooling = SentenceModules::Pooling;

constexpr size_t kMaxModules = 64;

// The modes of sentence-transformers: the key, and the word of newer files.
struct Mode {
  const char* key;
  const char* word;
  std::optional<Pooling> pooling;
};
constexpr Mode kModes[] = {{"pooling_mode_cls_token", "cls", Pooling::kCls},
                           {"pooling_mode_mean_tokens", "mean", Pooling::kMean},
                           {"pooling_mode_lasttoken", "lasttoken", Pooling::kLast},
                           {"pooling_mode_max_tokens", "max", std::nullopt},
                           {"pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens", std::nullopt},
                           {"pooling_mode_weightedmean_tokens", "weightedmean", std::nullopt}};

absl::Status ReadPooling(absl::string_view file, absl::string_view text, SentenceModules* modules) {
  ASSIGN_OR_RETURN(const json object, ParseJsonObject(file, text));
  JsonFields fields(std::string(file), object);
  const std::string word = fields.String("pooling_mode", "");
  std::vector<std::string> names;
  for (const Mode& mode : kModes) {
    if (word.empty() ? !fields.Bool(mode.key, false) : word != mode.word) continue;
    names.push_back(mode.word);
    if (mode.pooling.has_value()) {
      modules->pooling = *mode.pooling;
    } else {
      modules->missing = absl::StrCat("the pooling ", mode.word);
    }
  }
  RETURN_IF_ERROR(fields.status());
  if (names.empty() && !word.empty()) modules->missing = absl::StrCat("the pooling ", word);
  if (names.empty() && word.empty()) return fields.Bad("pooling_mode", "names no pooling");
  // Several poolings at once make one long vector.
  if (names.size() > 1)
    modules->missing = absl::StrCat("the poolings ", absl::StrJoin(names, " and "), " together");
  return absl::OkStatus();
}

// "sentence_transformers.models.Pooling" is a Pooling.
std::string ClassOf(const std::string& type) { return type.substr(type.rfind('.') + 1); }

absl::Status ReadModule(const std::string& directory, const json& module, SentenceModules* modules) {
  JsonFields fields("modules.json", module);
  const std::string name = ClassOf(fields.String("type", "")), path = fields.String("path", "");
  RETURN_IF_ERROR(fields.status());
  if (name == "Transformer") return absl::OkStatus();
  if (name == "Normalize") {
    modules->normalizes = true;
    return absl::OkStatus();
  }
  if (name != "Pooling") {
    modules->missing = absl::StrCat("the module ", name);
    return absl::OkStatus();
  }
  if (path.empty() || path.front() == '.' || path.find('/') != std::string::npos)
    return fields.Bad("path", "no name of a folder beside the file");
  bool is_there = false;
  RETURN_IF_ERROR(ReadOptionalFile(absl::StrCat(directory, "/", path, "/config.json"),
                                   [&](absl::string_view, absl::string_view text) {
                                     is_there = true;
                                     return ReadPooling(absl::StrCat(path, "/config.json"), text, modules);
                                   }));
  return is_there ? absl::OkStatus() : fields.Bad("path", "the folder has no config.json");
}

}  // namespace

absl::StatusOr<std::optional<SentenceModules>> ReadSentenceModules(const std::string& directory) {
  std::optional<SentenceModules> modules;
  const auto read = [&](absl::string_view file, absl::string_view text) -> absl::Status {
    // A list, which the parser of objects reads within an object.
    ASSIGN_OR_RETURN(const json object,
                     ParseJsonObject(file, absl::StrCat("{\"modules\":", WithoutByteOrderMark(text), "}")));
    const json& list = object.at("modules");
    if (!list.is_array() || list.size() > kMaxModules)
      return absl::InvalidArgumentError(
          absl::StrCat(file, ": not a list of at most ", kMaxModules, " modules"));
    modules.emplace();
    for (const json& module : list) {
      if (!module.is_object())
        return absl::InvalidArgumentError(absl::StrCat(file, ": a module is no object"));
      RETURN_IF_ERROR(ReadModule(directory, module, &*modules));
    }
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(ReadOptionalFile(absl::StrCat(directory, "/modules.json"), read));
  return modules;
}

}  // namespace somnus
