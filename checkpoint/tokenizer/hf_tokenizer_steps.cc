#include "checkpoint/tokenizer/hf_tokenizer_steps.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/json_file.h"

namespace somnus {
namespace {

using nlohmann::json;
using PreTokenizerKind = PreTokenizerStep::Kind;

constexpr size_t kMaxSteps = 64;

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

// {"String": text} or {"Regex": text}.
absl::Status ReadPattern(JsonFields* fields, const char* section, std::string* text, bool* is_regex) {
  JsonFields pattern(fields->file(), fields->Object("pattern"), absl::StrCat(section, ".pattern."));
  RETURN_IF_ERROR(fields->status());
  *is_regex = pattern.Has("Regex");
  *text = pattern.String(*is_regex ? "Regex" : "String", "");
  RETURN_IF_ERROR(pattern.status());
  return text->empty() ? fields->Bad("pattern", "neither a Regex nor a String") : absl::OkStatus();
}

// Each match in a text becomes such a content: a long content is damage, or a way to take memory.
absl::Status CheckContent(const JsonFields& fields, const char* key, const std::string& text) {
  constexpr size_t kMaxContentBytes = 256;
  return text.size() > kMaxContentBytes ? fields.Bad(key, "too long") : absl::OkStatus();
}

absl::Status ReadSplit(JsonFields* fields, PreTokenizerStep* step) {
  step->kind = PreTokenizerKind::kSplit;
  RETURN_IF_ERROR(ReadPattern(fields, "pre_tokenizer", &step->pattern, &step->pattern_is_regex));
  step->invert = fields->Bool("invert", false);
  RETURN_IF_ERROR(fields->status());
  return ReadBehavior(fields, step);
}

// "replacement" and "prepend_scheme"; files from before 2023 have "add_prefix_space" instead of
// "prepend_scheme".
absl::Status ReadMetaspace(JsonFields* fields, std::string* replacement, PreTokenizerStep::Prepend* prepend) {
  using Prepend = PreTokenizerStep::Prepend;
  *replacement = fields->String("replacement", "\u2581");
  const bool add = fields->Bool("add_prefix_space", true);
  const std::string scheme = fields->String("prepend_scheme", add ? "always" : "never");
  RETURN_IF_ERROR(fields->status());
  if (replacement->empty()) return fields->Bad("replacement", "is empty");
  RETURN_IF_ERROR(CheckContent(*fields, "replacement", *replacement));
  if (scheme != "always" && scheme != "first" && scheme != "never")
    return fields->Unsupported("prepend_scheme", scheme);
  *prepend = scheme == "always" ? Prepend::kAlways : scheme == "first" ? Prepend::kFirst : Prepend::kNever;
  return absl::OkStatus();
}

absl::StatusOr<PreTokenizerStep> ReadPreTokenizerStep(const std::string& type, JsonFields* fields) {
  PreTokenizerStep step;
  step.kind = PreTokenizerKind::kByteLevel;
  if (type == "ByteLevel") {
    step.add_prefix_space = fields->Bool("add_prefix_space", true);
    step.use_regex = fields->Bool("use_regex", true);
  } else if (type == "Split") {
    RETURN_IF_ERROR(ReadSplit(fields, &step));
  } else if (type == "Metaspace") {
    step.kind = PreTokenizerKind::kMetaspace;
    step.split = fields->Bool("split", true);
    RETURN_IF_ERROR(ReadMetaspace(fields, &step.pattern, &step.prepend));
  } else if (type == "Digits") {
    step.kind = PreTokenizerKind::kDigits;
    step.individual_digits = fields->Bool("individual_digits", false);
  } else if (type == "WhitespaceSplit") {
    step.kind = PreTokenizerKind::kWhitespaceSplit;
  } else if (type == "Punctuation") {
    step.kind = PreTokenizerKind::kPunctuation;
    RETURN_IF_ERROR(ReadBehavior(fields, &step));
  } else if (type == "Whitespace") {  // `tokenizers` defines Whitespace as this split
    step.kind = PreTokenizerKind::kSplit;
    step.pattern = R"(\w+|[^\w\s]+)";
    step.behavior = "Removed";
    step.invert = true;
  } else {
    return fields->Unsupported("type", type);
  }
  RETURN_IF_ERROR(fields->status());
  return step;
}

absl::StatusOr<NormalizerStep> ReadNormalizerStep(const std::string& type, JsonFields* fields) {
  using Kind = NormalizerStep::Kind;
  NormalizerStep step{};
  if (type == "NFC") return NormalizerStep{Kind::kNfc};
  if (type == "NFD") return NormalizerStep{Kind::kNfd};
  if (type == "NFKC") return NormalizerStep{Kind::kNfkc};
  if (type == "NFKD") return NormalizerStep{Kind::kNfkd};
  if (type == "Lowercase") return NormalizerStep{Kind::kLowercase};
  if (type == "Prepend") {
    step.kind = Kind::kPrepend;
    step.content = fields->String("prepend", "");
    RETURN_IF_ERROR(CheckContent(*fields, "prepend", step.content));
  } else if (type == "Replace") {
    step.kind = Kind::kReplace;
    RETURN_IF_ERROR(ReadPattern(fields, "normalizer", &step.pattern, &step.pattern_is_regex));
    step.content = fields->String("content", "");
    RETURN_IF_ERROR(CheckContent(*fields, "content", step.content));
  } else if (type == "Strip") {
    step.kind = Kind::kStrip;
    step.left = fields->Bool("strip_left", true);
    step.right = fields->Bool("strip_right", true);
  } else {
    return fields->Unsupported("type", type);
  }
  RETURN_IF_ERROR(fields->status());
  return step;
}

absl::StatusOr<DecoderStep> ReadDecoderStep(const std::string& type, JsonFields* fields) {
  using Kind = DecoderStep::Kind;
  DecoderStep step{};
  if (type == "ByteLevel") return DecoderStep{Kind::kByteLevel};
  if (type == "ByteFallback") return DecoderStep{Kind::kByteFallback};
  if (type == "Fuse") return DecoderStep{Kind::kFuse};
  if (type == "Replace") {
    step.kind = Kind::kReplace;
    bool is_regex = false;
    RETURN_IF_ERROR(ReadPattern(fields, "decoder", &step.pattern, &is_regex));
    if (is_regex) return fields->Unsupported("pattern", "Regex");
    step.content = fields->String("content", "");
  } else if (type == "Strip") {
    step.kind = Kind::kStrip;
    step.content = fields->String("content", " ");
    step.count = static_cast<int32_t>(fields->Int("start", 0, 0, 1 << 20));
    if (fields->Int("stop", 0, 0, 1 << 20) != 0) return fields->Unsupported("stop", "an end");
  } else if (type == "Metaspace") {
    step.kind = Kind::kMetaspace;
    PreTokenizerStep::Prepend prepend;
    RETURN_IF_ERROR(ReadMetaspace(fields, &step.pattern, &prepend));
    step.count = prepend == PreTokenizerStep::Prepend::kNever ? 0 : 1;
  } else {
    return fields->Unsupported("type", type);
  }
  RETURN_IF_ERROR(fields->status());
  RETURN_IF_ERROR(CheckContent(*fields, "content", step.content));
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
  // Later templates go around earlier templates.
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
  auto one = [data](const std::string& type, const json&, JsonFields* fields) -> absl::Status {
    if (data->normalizer.size() == kMaxSteps) return fields->Bad("type", "too many steps");
    ASSIGN_OR_RETURN(NormalizerStep step, ReadNormalizerStep(type, fields));
    data->normalizer.push_back(std::move(step));
    return absl::OkStatus();
  };
  return ForEachStep(file, "normalizer", normalizer, "normalizers", 0, one);
}

absl::Status ParsePreTokenizer(const std::string& file, absl::string_view raw, TokenizerData* data) {
  ASSIGN_OR_RETURN(const json wrapper, ParseValue(file, "pre_tokenizer", raw));
  const json& pre_tokenizer = wrapper.at("pre_tokenizer");
  if (pre_tokenizer.is_null()) return absl::OkStatus();
  auto one = [data](const std::string& type, const json&, JsonFields* fields) -> absl::Status {
    if (data->pre_tokenizer.size() == kMaxSteps) return fields->Bad("type", "too many steps");
    ASSIGN_OR_RETURN(PreTokenizerStep step, ReadPreTokenizerStep(type, fields));
    data->pre_tokenizer.push_back(std::move(step));
    return absl::OkStatus();
  };
  return ForEachStep(file, "pre_tokenizer", pre_tokenizer, "pretokenizers", 0, one);
}

absl::Status ParseDecoder(const std::string& file, absl::string_view raw, TokenizerData* data) {
  ASSIGN_OR_RETURN(const json wrapper, ParseValue(file, "decoder", raw));
  const json& decoder = wrapper.at("decoder");
  if (decoder.is_null()) return absl::OkStatus();
  auto one = [data](const std::string& type, const json&, JsonFields* fields) -> absl::Status {
    if (data->decoder.size() == kMaxSteps) return fields->Bad("type", "too many steps");
    ASSIGN_OR_RETURN(DecoderStep step, ReadDecoderStep(type, fields));
    data->decoder.push_back(std::move(step));
    return absl::OkStatus();
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
