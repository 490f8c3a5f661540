#include "checkpoint/tokenizer/hf_tokenizer.h"

#include <map>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "checkpoint/json_file.h"
#include "checkpoint/mapped_file.h"
#include "checkpoint/tokenizer/end_markers.h"
#include "checkpoint/tokenizer/hf_tokenizer_class.h"
#include "checkpoint/tokenizer/hf_tokenizer_files.h"
#include "checkpoint/tokenizer/hf_tokenizer_steps.h"

namespace somnus {
namespace {

using nlohmann::json;

// The tokens that configuration files name as special become added tokens, whether or not tokenizer.json
// lists them.
void AddSpecials(TokenizerData* data) {
  absl::flat_hash_map<absl::string_view, int32_t> vocabulary;
  for (size_t id = 0; id < data->tokens.size(); ++id)
    vocabulary.emplace(data->tokens[id], static_cast<int32_t>(id));
  absl::flat_hash_set<int32_t> known_ids;
  absl::flat_hash_set<std::string> known;
  for (const AddedToken& token : data->added_tokens) {
    known_ids.insert(token.id);
    known.insert(token.content);
  }
  std::vector<std::string> texts = {data->bos_token, data->eos_token, data->unk_token_text, data->pad_token};
  texts.insert(texts.end(), data->additional_special_tokens.begin(), data->additional_special_tokens.end());
  for (std::string& text : texts) {
    const auto found = vocabulary.find(text);
    if (text.empty() || found == vocabulary.end() || !known.insert(text).second) continue;
    if (!known_ids.insert(found->second).second) continue;
    AddedToken token{};
    token.id = found->second;
    token.content = std::move(text);
    token.special = true;
    data->added_tokens.push_back(std::move(token));
  }
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

// Special tokens without a role of their own: a list of strings, or of objects with "content".
absl::Status ReadMoreSpecials(JsonFields* fields, const json& object, TokenizerData* data) {
  constexpr char kKey[] = "additional_special_tokens";
  if (!fields->Has(kKey)) return absl::OkStatus();
  if (!object.at(kKey).is_array()) return fields->Bad(kKey, "not a list");
  for (const json& token : object.at(kKey)) {
    const json* text = token.is_object() && token.contains("content") ? &token.at("content") : &token;
    if (!text->is_string()) return fields->Bad(kKey, "a list of something else than tokens");
    data->additional_special_tokens.push_back(text->get<std::string>());
  }
  return absl::OkStatus();
}

absl::Status ReadSpecials(JsonFields* fields, const json& object, bool fill_only, TokenizerData* data) {
  RETURN_IF_ERROR(ReadSpecial(fields, object, "bos_token", fill_only, &data->bos_token));
  RETURN_IF_ERROR(ReadSpecial(fields, object, "eos_token", fill_only, &data->eos_token));
  RETURN_IF_ERROR(ReadSpecial(fields, object, "unk_token", fill_only, &data->unk_token_text));
  RETURN_IF_ERROR(ReadSpecial(fields, object, "pad_token", fill_only, &data->pad_token));
  return ReadMoreSpecials(fields, object, data);
}

// Takes "default", or the only template, as chat_template, and "tool_use" as tool_template.
void TakeNamedTemplates(const std::string& file, const std::map<std::string, std::string>& named,
                        TokenizerData* data) {
  const auto find = [&named](const char* name) {
    const auto it = named.find(name);
    return it == named.end() ? std::string() : it->second;
  };
  data->tool_template = find("tool_use");
  data->chat_template = named.size() == 1 ? named.begin()->second : find("default");
  if (!data->chat_template.empty() || named.empty()) return;
  std::vector<std::string> names;
  for (const auto& [name, text] : named) names.push_back(name);
  data->chat_template_problem =
      absl::StrCat(file, " has several, of which none is the default: ", absl::StrJoin(names, ", "));
}

// chat_template: a string, or a list of {name, template}.
absl::Status ReadChatTemplate(JsonFields* fields, const json& object, TokenizerData* data) {
  if (!fields->Has("chat_template")) return absl::OkStatus();
  const json& value = object.at("chat_template");
  if (value.is_string()) {
    data->chat_template = value.get<std::string>();
    return absl::OkStatus();
  }
  if (!value.is_array()) return fields->Bad("chat_template", "neither a string nor a list");
  std::map<std::string, std::string> named_templates;
  for (const json& entry : value) {
    if (!entry.is_object()) return fields->Bad("chat_template", "a list of something else than objects");
    JsonFields named(fields->file(), entry, "chat_template.");
    const std::string name = named.String("name", "");
    named_templates[name] = named.String("template", "");
    RETURN_IF_ERROR(named.status());
  }
  TakeNamedTemplates(fields->file(), named_templates, data);
  return absl::OkStatus();
}

// tokenizer_config.json repeats the added tokens of tokenizer.json. Without tokenizer.json this file
// `prevails`: vocab.json lists no added tokens, and tokenizer.model lists added tokens without their options.
absl::Status ReadAddedTokensDecoder(JsonFields* fields, bool prevails, TokenizerData* data) {
  absl::flat_hash_map<int32_t, size_t> known;  // id to index
  for (size_t i = 0; i < data->added_tokens.size(); ++i) known.emplace(data->added_tokens[i].id, i);
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
    if (added.content.empty()) continue;
    const auto [place, is_new] = known.emplace(id, data->added_tokens.size());
    if (is_new) {
      data->added_tokens.push_back(std::move(added));
    } else if (prevails) {
      data->added_tokens[place->second] = std::move(added);
    }
  }
  return fields->status();
}

absl::Status ParseSpecialTokensMap(const std::string& file, absl::string_view text, TokenizerData* data) {
  ASSIGN_OR_RETURN(const json map, ParseJsonObject(file, text));
  JsonFields fields(file, map);
  return ReadSpecials(&fields, map, /*fill_only=*/true, data);
}

// added_tokens.json: {"content": id}. tokenizer_config.json has the tokens' options in newer directories.
absl::Status ParseAddedTokensJson(const std::string& file, absl::string_view text, TokenizerData* data) {
  ASSIGN_OR_RETURN(const json tokens, ParseJsonObject(file, text));
  JsonFields fields(file, tokens);
  absl::flat_hash_set<int32_t> known;
  for (const AddedToken& token : data->added_tokens) known.insert(token.id);
  absl::flat_hash_set<std::string> specials(data->additional_special_tokens.begin(),
                                            data->additional_special_tokens.end());
  specials.insert({data->bos_token, data->eos_token, data->unk_token_text, data->pad_token});
  for (const auto& [content, unused] : tokens.items()) {
    AddedToken token{};
    token.id = static_cast<int32_t>(fields.Int(content, -1, 0, 1 << 30));
    token.content = content;
    token.special = specials.contains(content);
    token.normalized = !token.special;
    RETURN_IF_ERROR(fields.status());
    RETURN_IF_ERROR(CheckAddedTokenId(file, token.id, *data));
    if (!content.empty() && known.insert(token.id).second) data->added_tokens.push_back(std::move(token));
  }
  return absl::OkStatus();
}

// Processors of multimodal models keep the template here; this file is read last.
absl::Status ParseChatTemplateJson(const std::string& file, absl::string_view text, TokenizerData* data) {
  ASSIGN_OR_RETURN(const json object, ParseJsonObject(file, text));
  JsonFields fields(file, object);
  return data->chat_template.empty() ? ReadChatTemplate(&fields, object, data) : absl::OkStatus();
}

absl::Status ParseChatTemplateFile(const std::string& file, absl::string_view text, TokenizerData* data) {
  if (!IsUtf8(text)) return absl::InvalidArgumentError(absl::StrCat(file, ": not valid UTF-8"));
  // A template in a file of its own replaces the templates of tokenizer_config.json.
  data->chat_template = std::string(text);
  data->tool_template.clear();
  data->chat_template_problem.clear();
  return absl::OkStatus();
}

absl::Status ParseToolTemplateFile(const std::string& file, absl::string_view text, TokenizerData* data) {
  if (!IsUtf8(text)) return absl::InvalidArgumentError(absl::StrCat(file, ": not valid UTF-8"));
  data->tool_template = std::string(text);
  return absl::OkStatus();
}

}  // namespace

absl::Status FindHfTokenizer(const std::string& directory) {
  for (const char* file : {"/tokenizer.json", "/vocab.json", "/tokenizer.model"}) {
    if (!absl::IsNotFound(MappedFile::Open(directory + file).status())) return absl::OkStatus();
  }
  constexpr char kTiktoken[] = "tiktoken.model";
  if (!absl::IsNotFound(MappedFile::Open(absl::StrCat(directory, "/", kTiktoken)).status())) {
    return absl::UnimplementedError(
        absl::StrCat(kTiktoken, " is not read: the directory needs a tokenizer.json of that vocabulary"));
  }
  return absl::NotFoundError(
      "no tokenizer: none of tokenizer.json, vocab.json and tokenizer.model is in the directory");
}

absl::Status ParseTokenizerConfig(const std::string& file, absl::string_view text, bool prevails,
                                  TokenizerData* data) {
  ASSIGN_OR_RETURN(const json config, ParseJsonObject(file, text));
  JsonFields fields(file, config);
  RETURN_IF_ERROR(ReadSpecials(&fields, config, /*fill_only=*/false, data));
  RETURN_IF_ERROR(ReadChatTemplate(&fields, config, data));
  RETURN_IF_ERROR(ReadAddedTokensDecoder(&fields, prevails, data));
  data->add_bos_token = fields.Bool("add_bos_token", false);
  return fields.status();
}

absl::StatusOr<TokenizerData> ReadHfTokenizer(const std::string& directory) {
  TokenizerData data;
  std::optional<HfTokenizerClass> by_class;  // without tokenizer.json
  auto main = OpenLimited(directory + "/tokenizer.json", kMaxTokenizerBytes);
  if (absl::IsNotFound(main.status())) {
    RETURN_IF_ERROR(FindHfTokenizer(directory));
    ASSIGN_OR_RETURN(by_class, HfTokenizerClass::Read(directory));
    RETURN_IF_ERROR(by_class->ReadVocabulary(directory, &data));
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
  const auto parse_config = [&](const std::string& file, absl::string_view text) {
    return ParseTokenizerConfig(file, text, /*prevails=*/by_class.has_value(), &data);
  };
  RETURN_IF_ERROR(ReadOptionalFile(directory + "/tokenizer_config.json", parse_config));
  RETURN_IF_ERROR(ReadOptionalFile(directory + "/special_tokens_map.json", with(ParseSpecialTokensMap)));
  RETURN_IF_ERROR(ReadOptionalFile(directory + "/chat_template.jinja", with(ParseChatTemplateFile)));
  RETURN_IF_ERROR(
      ReadOptionalFile(directory + "/additional_chat_templates/tool_use.jinja", with(ParseToolTemplateFile)));
  RETURN_IF_ERROR(ReadOptionalFile(directory + "/chat_template.json", with(ParseChatTemplateJson)));
  if (by_class.has_value()) {
    RETURN_IF_ERROR(ReadOptionalFile(directory + "/added_tokens.json", with(ParseAddedTokensJson)));
    by_class->SetDefaultTokens(&data);
  }
  AddSpecials(&data);
  AddEndToken(IdOfToken(data, data.eos_token), &data);
  data.end_markers = EndMarkersOf(data);
  if (by_class.has_value()) by_class->SetPostProcessor(&data);
  return data;
}

}  // namespace somnus
