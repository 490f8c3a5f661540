#include "checkpoint/hf_tokenizer_steps.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/json_file.h"

namespace somnus {
namespace {

using nlohmann::json;
using Kind = PreTokenizerStep::Kind;

// Wraps one value into an object, so that null, lists and objects are read alike.
absl::StatusOr<json> ParseValue(const std::string& file, const std::string& key, absl::string_view raw) {
  return ParseJsonObject(file, absl::StrCat("{\"", key, "\":", raw, "}"));
}

// Calls `one` for `step`, or for each step of a "Sequence" whose list is under `list_key`.
template <typename One>
absl::Status ForEachStep(const std::string& file, const std::string& key, const json& step,
                         const char* list_key, int depth, const One& one) {
  if (!step.is_object()) return absl::InvalidArgumentError(absl::StrCat(file, ": ", key, ": not an object"));
  JsonFields fields(file, step, key + ".");
  const std::string type = fields.String("type", "");
  RETURN_IF_ERROR(fields.status());
  if (type != "Sequence") return one(type, step, &fields);
  constexpr int kMaxDepth = 8;
  if (depth == kMaxDepth) return fields.Bad("type", "sequences nested too deeply");
  const auto list = step.find(list_key);
  if (list == step.end() || !list->is_array()) return fields.Bad(list_key, "not a list");
  for (const json& inner : *list) RETURN_IF_ERROR(ForEachStep(file, key, inner, list_key, depth + 1, one));
  return absl::OkStatus();
}

absl::Status ReadBehavior(JsonFields* fields, PreTokenizerStep* step) {
  step->behavior = fields->String("behavior", "Isolated");
  for (const char* known : {"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"}) {
    if (step->behavior == known) return fields->status();
  }
  return fields->Bad("behavior", absl::StrCat("unknown behavior ", step->behavior));
}

absl::Status ReadSplit(JsonFields* fields, PreTokenizerStep* step) {
  step->kind = Kind::kSplit;
  JsonFields pattern(fields->file(), fields->Object("pattern"), "pre_tokenizer.pattern.");
  step->pattern_is_regex = pattern.Has("Regex");
  step->pattern = pattern.String(step->pattern_is_regex ? "Regex" : "String", "");
  step->invert = fields->Bool("invert", false);
  RETURN_IF_ERROR(pattern.status());
  RETURN_IF_ERROR(fields->status());
  if (step->pattern.empty()) return fields->Bad("pattern", "neither a Regex nor a String");
  return ReadBehavior(fields, step);
}

absl::StatusOr<PreTokenizerStep> ReadPreTokenizerStep(const std::string& type, JsonFields* fields) {
  PreTokenizerStep step;
  step.kind = Kind::kByteLevel;
  if (type == "ByteLevel") {
    step.add_prefix_space = fields->Bool("add_prefix_space", true);
    step.use_regex = fields->Bool("use_regex", true);
  } else if (type == "Split") {
    RETURN_IF_ERROR(ReadSplit(fields, &step));
  } else if (type == "Digits") {
    step.kind = Kind::kDigits;
    step.individual_digits = fields->Bool("individual_digits", false);
  } else if (type == "WhitespaceSplit") {
    step.kind = Kind::kWhitespaceSplit;
  } else if (type == "Punctuation") {
    step.kind = Kind::kPunctuation;
    RETURN_IF_ERROR(ReadBehavior(fields, &step));
  } else if (type == "Whitespace") {  // `tokenizers` defines it as this split
    step.kind = Kind::kSplit;
    step.pattern = R"(\w+|[^\w\s]+)";
    step.behavior = "Removed";
    step.invert = true;
  } else {
    return fields->Unsupported("type", type);
  }
  RETURN_IF_ERROR(fields->status());
  return step;
}

// Appends the ids of a template's special token.
absl::Status AppendSpecialIds(JsonFields* fields, const json& item, std::vector<int32_t>* ids) {
  JsonFields special(fields->file(), item, "post_processor.single.");
  const std::string id = special.String("id", "");
  RETURN_IF_ERROR(special.status());
  const json& table = fields->Object("special_tokens");
  const auto found = table.find(id);
  if (found == table.end() || !found->is_object())
    return fields->Bad("special_tokens", absl::StrCat(id, " is missing"));
  JsonFields entry(fields->file(), *found, "post_processor.special_tokens.");
  const std::vector<int32_t> more = entry.Ids("ids");
  ids->insert(ids->end(), more.begin(), more.end());
  constexpr size_t kMaxIds = 1024;
  if (ids->size() > kMaxIds) return fields->Bad("single", "too many tokens");
  return entry.status();
}

absl::Status ReadTemplate(JsonFields* fields, const json& step, PostProcessor* out) {
  const auto single = step.find("single");
  if (single == step.end() || !single->is_array()) return fields->Bad("single", "not a list");
  PostProcessor result;
  int sequences = 0;
  for (const json& item : *single) {
    if (!item.is_object()) return fields->Bad("single", "a list of something else than objects");
    JsonFields piece(fields->file(), item, "post_processor.single.");
    if (piece.Has("Sequence")) {
      ++sequences;
    } else if (piece.Has("SpecialToken")) {
      const json& special = piece.Object("SpecialToken");
      RETURN_IF_ERROR(piece.status());
      RETURN_IF_ERROR(
          AppendSpecialIds(fields, special, sequences == 0 ? &result.prefix_ids : &result.suffix_ids));
    } else {
      return fields->Bad("single", "a piece that is neither Sequence nor SpecialToken");
    }
  }
  if (sequences != 1) return fields->Bad("single", "does not hold the sequence exactly once");
  // Of several templates the later ones go around the earlier ones.
  result.prefix_ids.insert(result.prefix_ids.end(), out->prefix_ids.begin(), out->prefix_ids.end());
  result.suffix_ids.insert(result.suffix_ids.begin(), out->suffix_ids.begin(), out->suffix_ids.end());
  *out = std::move(result);
  return fields->status();
}

// "cls" and "sep" of BERT's and RoBERTa's processors: [text, id].
absl::Status ReadPair(const JsonFields& fields, const json& step, const char* key,
                      std::vector<int32_t>* ids) {
  const auto pair = step.find(key);
  if (pair == step.end() || !pair->is_array() || pair->size() != 2 || !(*pair)[1].is_number_unsigned() ||
      (*pair)[1].get<uint64_t>() > (uint64_t{1} << 30)) {
    return fields.Bad(key, "not a token with its id");
  }
  *ids = {(*pair)[1].get<int32_t>()};
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckAddedTokenId(const std::string& file, int64_t id, const TokenizerData& data) {
  constexpr int64_t kMaxGap = 1 << 16;
  if (id >= 0 && id < static_cast<int64_t>(data.tokens.size() + data.added_tokens.size()) + kMaxGap) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(file, ": added_tokens: id ", id, " is far outside the vocabulary"));
}

AddedToken ReadAddedToken(int32_t id, JsonFields* fields) {
  AddedToken token{};
  token.id = id;
  token.content = fields->String("content", "");
  token.special = fields->Bool("special", false);
  token.lstrip = fields->Bool("lstrip", false);
  token.rstrip = fields->Bool("rstrip", false);
  token.single_word = fields->Bool("single_word", false);
  token.normalized = fields->Bool("normalized", !token.special);
  return token;
}

absl::Status ParseAddedTokens(const std::string& file, absl::string_view raw, TokenizerData* data) {
  ASSIGN_OR_RETURN(const json wrapper, ParseValue(file, "added_tokens", raw));
  const json& list = wrapper.at("added_tokens");
  if (list.is_null()) return absl::OkStatus();
  if (!list.is_array()) return absl::InvalidArgumentError(absl::StrCat(file, ": added_tokens: not a list"));
  for (const json& entry : list) {
    if (!entry.is_object()) {
      return absl::InvalidArgumentError(
          absl::StrCat(file, ": added_tokens: a list of something else than objects"));
    }
    JsonFields fields(file, entry, "added_tokens.");
    const int64_t id = fields.Int("id", -1, 0, 1 << 30);
    AddedToken token = ReadAddedToken(static_cast<int32_t>(id), &fields);
    RETURN_IF_ERROR(fields.status());
    RETURN_IF_ERROR(CheckAddedTokenId(file, id, *data));
    if (token.content.empty()) continue;  // matches nothing
    data->added_tokens.push_back(std::move(token));
  }
  return absl::OkStatus();
}

absl::Status ParseNormalizer(const std::string& file, absl::string_view raw, TokenizerData* data) {
  ASSIGN_OR_RETURN(const json wrapper, ParseValue(file, "normalizer", raw));
  const json& normalizer = wrapper.at("normalizer");
  if (normalizer.is_null()) return absl::OkStatus();
  auto one = [data](const std::string& type, const json&, JsonFields* fields) {
    if (type == "Lowercase") {
      data->lowercase = true;
      return absl::OkStatus();
    }
    bool* flag = type == "NFC"    ? &data->nfc
                 : type == "NFD"  ? &data->nfd
                 : type == "NFKC" ? &data->nfkc
                 : type == "NFKD" ? &data->nfkd
                                  : nullptr;
    if (flag == nullptr) return fields->Unsupported("type", type);
    *flag = true;
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(ForEachStep(file, "normalizer", normalizer, "normalizers", 0, one));
  if (data->nfc + data->nfd + data->nfkc + data->nfkd <= 1) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat(file, ": normalizer: more than one Unicode form is not supported"));
}

absl::Status ParsePreTokenizer(const std::string& file, absl::string_view raw, TokenizerData* data) {
  ASSIGN_OR_RETURN(const json wrapper, ParseValue(file, "pre_tokenizer", raw));
  const json& pre_tokenizer = wrapper.at("pre_tokenizer");
  if (pre_tokenizer.is_null()) return absl::OkStatus();
  auto one = [data](const std::string& type, const json&, JsonFields* fields) -> absl::Status {
    constexpr size_t kMaxSteps = 64;
    if (data->pre_tokenizer.size() == kMaxSteps) return fields->Bad("type", "too many steps");
    ASSIGN_OR_RETURN(PreTokenizerStep step, ReadPreTokenizerStep(type, fields));
    data->pre_tokenizer.push_back(std::move(step));
    return absl::OkStatus();
  };
  return ForEachStep(file, "pre_tokenizer", pre_tokenizer, "pretokenizers", 0, one);
}

absl::Status CheckDecoder(const std::string& file, absl::string_view raw) {
  ASSIGN_OR_RETURN(const json wrapper, ParseValue(file, "decoder", raw));
  const json& decoder = wrapper.at("decoder");
  if (decoder.is_null()) return absl::OkStatus();
  auto one = [](const std::string& type, const json&, JsonFields* fields) {
    const bool known = type == "ByteLevel" || type == "ByteFallback" || type == "Fuse";
    return known ? absl::OkStatus() : fields->Unsupported("type", type);
  };
  return ForEachStep(file, "decoder", decoder, "decoders", 0, one);
}

absl::Status ParsePostProcessor(const std::string& file, absl::string_view raw, TokenizerData* data) {
  ASSIGN_OR_RETURN(const json wrapper, ParseValue(file, "post_processor", raw));
  const json& post_processor = wrapper.at("post_processor");
  if (post_processor.is_null()) return absl::OkStatus();
  auto one = [data](const std::string& type, const json& step, JsonFields* fields) -> absl::Status {
    PostProcessor* out = &data->post_processor;
    if (type == "ByteLevel") return absl::OkStatus();  // only trims offsets
    if (type == "TemplateProcessing") return ReadTemplate(fields, step, out);
    if (type == "RobertaProcessing" || type == "BertProcessing") {
      RETURN_IF_ERROR(ReadPair(*fields, step, "cls", &out->prefix_ids));
      return ReadPair(*fields, step, "sep", &out->suffix_ids);
    }
    return fields->Unsupported("type", type);
  };
  return ForEachStep(file, "post_processor", post_processor, "processors", 0, one);
}

}  // namespace somnus
