#include "checkpoint/hf_tokenizer.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "checkpoint/hf_tokenizer_steps.h"
#include "checkpoint/json_file.h"
#include "checkpoint/json_reader.h"
#include "checkpoint/mapped_file.h"

namespace somnus {
namespace {

using nlohmann::json;

// tokenizer.json of the largest vocabularies (256 k) is below 40 MB.
constexpr uint64_t kMaxTokenizerBytes = 512 << 20;
constexpr uint64_t kMaxTemplateBytes = 16 << 20;

absl::StatusOr<std::unique_ptr<MappedFile>> OpenLimited(const std::string& path, uint64_t max_bytes) {
  ASSIGN_OR_RETURN(std::unique_ptr<MappedFile> file, MappedFile::Open(path));
  if (file->size() <= max_bytes) return file;
  return absl::InvalidArgumentError(absl::StrCat(file->name(), ": longer than ", max_bytes, " bytes"));
}

int32_t IdOf(const TokenizerData& data, absl::string_view token) {
  for (const AddedToken& added : data.added_tokens) {
    if (added.content == token) return added.id;
  }
  const auto it = std::find(data.tokens.begin(), data.tokens.end(), token);
  return it == data.tokens.end() || token.empty() ? -1 : static_cast<int32_t>(it - data.tokens.begin());
}

// Old directories of GPT-2 and OPT have only vocab.json and merges.txt.
absl::Status ReadVocabAndMerges(const std::string& directory, TokenizerData* data) {
  auto vocab = OpenLimited(directory + "/vocab.json", kMaxTokenizerBytes);
  if (absl::IsNotFound(vocab.status())) {
    return absl::NotFoundError("no tokenizer: neither tokenizer.json nor vocab.json is in the directory");
  }
  RETURN_IF_ERROR(vocab.status());
  ASSIGN_OR_RETURN(const auto merges, OpenLimited(directory + "/merges.txt", kMaxTokenizerBytes));
  RETURN_IF_ERROR(ParseVocabJson((*vocab)->name(), (*vocab)->text(), data));
  RETURN_IF_ERROR(ParseMergesText(merges->name(), merges->text(), data));
  RETURN_IF_ERROR((*vocab)->CheckWhole());
  RETURN_IF_ERROR(merges->CheckWhole());
  PreTokenizerStep step;
  step.kind = PreTokenizerStep::Kind::kByteLevel;
  data->pre_tokenizer = {step};
  return absl::OkStatus();
}

// The tokens that configuration files name as special become added tokens, whether or not tokenizer.json
// lists them.
void AddSpecials(TokenizerData* data) {
  for (const std::string* text :
       {&data->bos_token, &data->eos_token, &data->unk_token_text, &data->pad_token}) {
    const int32_t id = IdOf(*data, *text);
    const bool known = std::any_of(data->added_tokens.begin(), data->added_tokens.end(),
                                   [id](const AddedToken& token) { return token.id == id; });
    if (id < 0 || known) continue;
    AddedToken token{};
    token.id = id;
    token.content = *text;
    token.special = true;
    data->added_tokens.push_back(std::move(token));
  }
}

// A file of one JSON object, parsed by `parse`; a file that is not there changes nothing.
template <typename Parse>
absl::Status ReadOptional(const std::string& path, const Parse& parse) {
  auto file = OpenLimited(path, kMaxTemplateBytes);
  if (absl::IsNotFound(file.status())) return absl::OkStatus();
  RETURN_IF_ERROR(file.status());
  const absl::Status status = parse((*file)->name(), (*file)->text());
  RETURN_IF_ERROR((*file)->CheckWhole());
  return status;
}

// A special token is a string, or an object with "content". `fill_only`: an earlier file takes precedence.
absl::Status ReadSpecial(JsonFields* fields, const json& object, const char* key, bool fill_only,
                         std::string* text) {
  if (!fields->Has(key) || (fill_only && !text->empty())) return absl::OkStatus();
  const json& value = object.at(key);
  if (value.is_object()) {
    JsonFields inner(fields->file(), value, absl::StrCat(key, "."));
    *text = inner.String("content", "");
    return inner.status();
  }
  *text = fields->String(key, "");
  return fields->status();
}

absl::Status ReadSpecials(JsonFields* fields, const json& object, bool fill_only, TokenizerData* data) {
  RETURN_IF_ERROR(ReadSpecial(fields, object, "bos_token", fill_only, &data->bos_token));
  RETURN_IF_ERROR(ReadSpecial(fields, object, "eos_token", fill_only, &data->eos_token));
  RETURN_IF_ERROR(ReadSpecial(fields, object, "unk_token", fill_only, &data->unk_token_text));
  return ReadSpecial(fields, object, "pad_token", fill_only, &data->pad_token);
}

// chat_template: a string, or a list of {name, template} of which "default" is taken.
absl::Status ReadChatTemplate(JsonFields* fields, const json& object, std::string* chat_template) {
  if (!fields->Has("chat_template")) return absl::OkStatus();
  const json& value = object.at("chat_template");
  if (value.is_string()) {
    *chat_template = value.get<std::string>();
    return absl::OkStatus();
  }
  if (!value.is_array()) return fields->Bad("chat_template", "neither a string nor a list");
  for (const json& entry : value) {
    if (!entry.is_object()) return fields->Bad("chat_template", "a list of something else than objects");
    JsonFields named(fields->file(), entry, "chat_template.");
    const std::string name = named.String("name", ""), text = named.String("template", "");
    RETURN_IF_ERROR(named.status());
    if (name == "default") *chat_template = text;
  }
  return absl::OkStatus();
}

// tokenizer_config.json repeats added tokens, or is their only source beside vocab.json.
absl::Status ReadAddedTokensDecoder(JsonFields* fields, TokenizerData* data) {
  absl::flat_hash_set<int32_t> known;
  for (const AddedToken& token : data->added_tokens) known.insert(token.id);
  for (const auto& [key, value] : fields->Object("added_tokens_decoder").items()) {
    const std::string prefix = absl::StrCat("added_tokens_decoder.", key, ".");
    int32_t id = -1;
    if (!absl::SimpleAtoi(key, &id) || id < 0 || !value.is_object()) {
      return fields->Bad("added_tokens_decoder", absl::StrCat(key, " is not a token id with an object"));
    }
    JsonFields token(fields->file(), value, prefix);
    AddedToken added = ReadAddedToken(id, &token);
    RETURN_IF_ERROR(token.status());
    RETURN_IF_ERROR(CheckAddedTokenId(fields->file(), id, *data));
    if (!added.content.empty() && known.insert(id).second) data->added_tokens.push_back(std::move(added));
  }
  return fields->status();
}

absl::Status ParseSpecialTokensMap(const std::string& file, absl::string_view text, TokenizerData* data) {
  ASSIGN_OR_RETURN(const json map, ParseJsonObject(file, text));
  JsonFields fields(file, map);
  return ReadSpecials(&fields, map, /*fill_only=*/true, data);
}

// Processors of multimodal models keep the template here; it is read last.
absl::Status ParseChatTemplateJson(const std::string& file, absl::string_view text, TokenizerData* data) {
  ASSIGN_OR_RETURN(const json object, ParseJsonObject(file, text));
  JsonFields fields(file, object);
  return data->chat_template.empty() ? ReadChatTemplate(&fields, object, &data->chat_template)
                                     : absl::OkStatus();
}

absl::Status ParseChatTemplateFile(const std::string& file, absl::string_view text, TokenizerData* data) {
  if (!IsUtf8(text)) return absl::InvalidArgumentError(absl::StrCat(file, ": not valid UTF-8"));
  data->chat_template = std::string(text);
  return absl::OkStatus();
}

}  // namespace

absl::Status ParseTokenizerConfig(const std::string& file, absl::string_view text, TokenizerData* data) {
  ASSIGN_OR_RETURN(const json config, ParseJsonObject(file, text));
  JsonFields fields(file, config);
  RETURN_IF_ERROR(ReadSpecials(&fields, config, /*fill_only=*/false, data));
  RETURN_IF_ERROR(ReadChatTemplate(&fields, config, &data->chat_template));
  RETURN_IF_ERROR(ReadAddedTokensDecoder(&fields, data));
  data->add_bos_token = fields.Bool("add_bos_token", false);
  return fields.status();
}

absl::StatusOr<TokenizerData> ReadHfTokenizer(const std::string& directory) {
  TokenizerData data;
  auto main = OpenLimited(directory + "/tokenizer.json", kMaxTokenizerBytes);
  const bool legacy = absl::IsNotFound(main.status());
  if (legacy) {
    RETURN_IF_ERROR(ReadVocabAndMerges(directory, &data));
  } else {
    RETURN_IF_ERROR(main.status());
    const absl::Status status = ParseTokenizerJson((*main)->name(), (*main)->text(), &data);
    RETURN_IF_ERROR((*main)->CheckWhole());
    RETURN_IF_ERROR(status);
  }
  auto with = [&data](absl::Status (*parse)(const std::string&, absl::string_view, TokenizerData*)) {
    return
        [&data, parse](const std::string& file, absl::string_view text) { return parse(file, text, &data); };
  };
  RETURN_IF_ERROR(ReadOptional(directory + "/tokenizer_config.json", with(ParseTokenizerConfig)));
  RETURN_IF_ERROR(ReadOptional(directory + "/special_tokens_map.json", with(ParseSpecialTokensMap)));
  RETURN_IF_ERROR(ReadOptional(directory + "/chat_template.jinja", with(ParseChatTemplateFile)));
  RETURN_IF_ERROR(ReadOptional(directory + "/chat_template.json", with(ParseChatTemplateJson)));
  AddSpecials(&data);
  const int32_t bos = IdOf(data, data.bos_token);
  // Without tokenizer.json there is no post-processor but this one.
  if (legacy && data.add_bos_token && bos >= 0) data.post_processor.prefix_ids = {bos};
  return data;
}

}  // namespace somnus
