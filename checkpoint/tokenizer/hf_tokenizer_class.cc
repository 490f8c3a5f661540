#include "checkpoint/tokenizer/hf_tokenizer_class.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "checkpoint/json_file.h"
#include "checkpoint/tokenizer/hf_tokenizer.h"
#include "checkpoint/tokenizer/hf_tokenizer_files.h"
#include "checkpoint/tokenizer/sentencepiece_model.h"
#include "checkpoint/tokenizer/split_patterns.h"

namespace somnus {

// The behaviour of transformers' class `name`.
struct TokenizerClassRule {
  const char* name;
  enum class Kind { kBytes, kPieces } kind;
  const char* pattern;          // kBytes: cuts the text first; nullptr: the byte-level step cuts by GPT-2's
  bool nfc = false;             // kBytes
  bool cls_and_sep = false;     // the tokens cls and sep go around a text
  bool add_bos = false;         // unless the file says otherwise
  bool legacy = false;          // kPieces: a space also after added tokens, unless the file says otherwise
  const char *bos, *eos, *unk;  // unless a file says otherwise
};

namespace {

using nlohmann::json;
using RuleKind = TokenizerClassRule::Kind;

constexpr char kEndOfText[] = "<|endoftext|>";

constexpr TokenizerClassRule kRules[] = {
    {"GPT2Tokenizer", RuleKind::kBytes, nullptr, false, false, false, false, kEndOfText, kEndOfText,
     kEndOfText},
    {"CodeGenTokenizer", RuleKind::kBytes, nullptr, false, false, false, false, kEndOfText, kEndOfText,
     kEndOfText},
    {"GPTNeoXTokenizer", RuleKind::kBytes, nullptr, true, false, false, false, kEndOfText, kEndOfText,
     kEndOfText},
    {"Qwen2Tokenizer", RuleKind::kBytes, kQwen2Pattern, true, false, false, false, "", kEndOfText,
     kEndOfText},
    {"RobertaTokenizer", RuleKind::kBytes, nullptr, false, true, false, false, "<s>", "</s>", "<unk>"},
    {"BartTokenizer", RuleKind::kBytes, nullptr, false, true, false, false, "<s>", "</s>", "<unk>"},
    {"LongformerTokenizer", RuleKind::kBytes, nullptr, false, true, false, false, "<s>", "</s>", "<unk>"},
    {"LEDTokenizer", RuleKind::kBytes, nullptr, false, true, false, false, "<s>", "</s>", "<unk>"},
    {"LlamaTokenizer", RuleKind::kPieces, nullptr, false, false, true, false, "<s>", "</s>", "<unk>"},
    {"MistralTokenizer", RuleKind::kPieces, nullptr, false, false, true, true, "<s>", "</s>", "<unk>"},
    {"GemmaTokenizer", RuleKind::kPieces, nullptr, false, false, true, false, "<bos>", "<eos>", "<unk>"},
};

// The classes that transformers takes where no file names a class. MistralTokenizer here differs from
// LlamaTokenizer only in the spaces after added tokens.
constexpr struct {
  const char *model_type, *class_name;
} kClassesOfModels[] = {
    {"gpt2", "GPT2Tokenizer"},       {"gpt_neo", "GPT2Tokenizer"},      {"gptj", "GPT2Tokenizer"},
    {"opt", "GPT2Tokenizer"},        {"phi", "GPT2Tokenizer"},          {"starcoder2", "GPT2Tokenizer"},
    {"codegen", "CodeGenTokenizer"}, {"qwen2", "Qwen2Tokenizer"},       {"qwen2_moe", "Qwen2Tokenizer"},
    {"qwen3", "Qwen2Tokenizer"},     {"qwen3_moe", "Qwen2Tokenizer"},   {"roberta", "RobertaTokenizer"},
    {"bart", "BartTokenizer"},       {"llama", "LlamaTokenizer"},       {"mistral", "MistralTokenizer"},
    {"gemma", "GemmaTokenizer"},     {"mixtral", "MistralTokenizer"},   {"gemma2", "GemmaTokenizer"},
    {"gemma3", "GemmaTokenizer"},    {"gemma3_text", "GemmaTokenizer"},
};

const TokenizerClassRule* FindRule(absl::string_view name) {
  absl::ConsumeSuffix(&name, "Fast");
  const auto found = std::find_if(std::begin(kRules), std::end(kRules),
                                  [&](const TokenizerClassRule& rule) { return name == rule.name; });
  return found == std::end(kRules) ? nullptr : found;
}

absl::Status ReadFlag(JsonFields* fields, const char* key, std::optional<bool>* flag) {
  if (fields->Has(key)) *flag = fields->Bool(key, false);
  return fields->status();
}

// A special token is a string, or an object with "content".
absl::Status ReadName(JsonFields* fields, const json& object, const char* key, std::string* text) {
  if (!fields->Has(key)) return absl::OkStatus();
  if (!object.at(key).is_object()) {
    *text = fields->String(key, "");
    return fields->status();
  }
  JsonFields inner(fields->file(), object.at(key), absl::StrCat(key, "."));
  *text = inner.String("content", "");
  return inner.status();
}

PreTokenizerStep Step(PreTokenizerStep::Kind kind) {
  PreTokenizerStep step;
  step.kind = kind;
  return step;
}

absl::Status CheckModel(const std::string& file, const SentencePieceModel& model) {
  const auto refuse = [&](absl::string_view what) {
    return absl::UnimplementedError(absl::StrCat(file, ": ", what, " is not supported"));
  };
  if (model.algorithm != SentencePieceModel::Algorithm::kBpe)
    return refuse(model.algorithm == SentencePieceModel::Algorithm::kUnigram ? "a model of kind Unigram"
                                                                             : "a model that is not BPE");
  if (model.normalizes_characters) return refuse("normalizer_spec.precompiled_charsmap");
  if (!model.escape_spaces) return refuse("normalizer_spec.escape_whitespaces: false");
  if (model.space_is_suffix) return refuse("trainer_spec.treat_whitespace_as_suffix");
  const auto& types = model.vocabulary.types;
  if (std::find(types.begin(), types.end(), PieceType::kUnused) != types.end())
    return refuse("a piece of type UNUSED");
  return absl::OkStatus();
}

}  // namespace

int32_t IdOfToken(const TokenizerData& data, absl::string_view token) {
  for (const AddedToken& added : data.added_tokens) {
    if (added.content == token) return added.id;
  }
  const auto it = std::find(data.tokens.begin(), data.tokens.end(), token);
  return it == data.tokens.end() || token.empty() ? -1 : static_cast<int32_t>(it - data.tokens.begin());
}

absl::StatusOr<HfTokenizerClass> HfTokenizerClass::Read(const std::string& directory) {
  HfTokenizerClass out;
  std::string name, model_type;
  RETURN_IF_ERROR(ReadOptionalFile(
      directory + "/tokenizer_config.json",
      [&](const std::string& file, absl::string_view text) -> absl::Status {
        ASSIGN_OR_RETURN(const json config, ParseJsonObject(file, text));
        JsonFields fields(file, config);
        name = fields.String("tokenizer_class", "");
        RETURN_IF_ERROR(ReadFlag(&fields, "add_prefix_space", &out.options_.add_prefix_space));
        RETURN_IF_ERROR(ReadFlag(&fields, "add_bos_token", &out.options_.add_bos));
        RETURN_IF_ERROR(ReadFlag(&fields, "add_eos_token", &out.options_.add_eos));
        RETURN_IF_ERROR(ReadFlag(&fields, "legacy", &out.options_.legacy));
        RETURN_IF_ERROR(ReadName(&fields, config, "cls_token", &out.options_.cls_token));
        RETURN_IF_ERROR(ReadName(&fields, config, "sep_token", &out.options_.sep_token));
        return fields.status();
      }));
  RETURN_IF_ERROR(ReadOptionalFile(directory + "/config.json",
                                   [&](const std::string& file, absl::string_view text) -> absl::Status {
                                     ASSIGN_OR_RETURN(const json config, ParseJsonObject(file, text));
                                     JsonFields fields(file, config);
                                     if (name.empty()) name = fields.String("tokenizer_class", "");
                                     model_type = fields.String("model_type", "");
                                     return fields.status();
                                   }));
  for (const auto& known : kClassesOfModels) {
    if (name.empty() && model_type == known.model_type) name = known.class_name;
  }
  if (name.empty()) {
    return absl::UnimplementedError(
        "a directory without tokenizer.json whose tokenizer_config.json names no tokenizer_class is not "
        "supported: how "
        "its text is cut is not known");
  }
  out.rule_ = FindRule(name);
  if (out.rule_ != nullptr) return out;
  return absl::UnimplementedError(absl::StrCat("tokenizer_config.json: tokenizer_class: ", name,
                                               " is not supported without tokenizer.json"));
}

absl::Status HfTokenizerClass::ReadVocabulary(const std::string& directory, TokenizerData* data) const {
  return rule_->kind == RuleKind::kPieces ? ReadPieces(directory, data) : ReadBytes(directory, data);
}

absl::Status HfTokenizerClass::ReadBytes(const std::string& directory, TokenizerData* data) const {
  ASSIGN_OR_RETURN(const auto vocab, OpenLimited(directory + "/vocab.json", kMaxTokenizerBytes));
  ASSIGN_OR_RETURN(const auto merges, OpenLimited(directory + "/merges.txt", kMaxTokenizerBytes));
  const absl::Status parsed = ParseVocabJson(vocab->name(), vocab->text(), data);
  RETURN_IF_ERROR(vocab->CheckWhole());
  RETURN_IF_ERROR(parsed);
  const absl::Status merged = ParseMergesText(merges->name(), merges->text(), data);
  RETURN_IF_ERROR(merges->CheckWhole());
  RETURN_IF_ERROR(merged);
  if (rule_->nfc) data->normalizer.push_back({NormalizerStep::Kind::kNfc});
  if (rule_->pattern != nullptr) {
    data->pre_tokenizer.push_back(Step(PreTokenizerStep::Kind::kSplit));
    data->pre_tokenizer.back().pattern = rule_->pattern;
  }
  PreTokenizerStep bytes = Step(PreTokenizerStep::Kind::kByteLevel);
  bytes.use_regex = rule_->pattern == nullptr;
  bytes.add_prefix_space = options_.add_prefix_space.value_or(false);
  data->pre_tokenizer.push_back(std::move(bytes));
  data->decoder = {{DecoderStep::Kind::kByteLevel}};
  return absl::OkStatus();
}

absl::Status HfTokenizerClass::ReadPieces(const std::string& directory, TokenizerData* data) const {
  ASSIGN_OR_RETURN(const auto file, OpenLimited(directory + "/tokenizer.model", kMaxTokenizerBytes));
  absl::StatusOr<SentencePieceModel> model = ParseSentencePieceModel(file->name(), file->text());
  RETURN_IF_ERROR(file->CheckWhole());
  RETURN_IF_ERROR(model.status());
  RETURN_IF_ERROR(CheckModel(file->name(), *model));
  SentencePieceSpaces spaces;
  spaces.prefix = model->add_dummy_prefix && options_.add_prefix_space.value_or(true);
  spaces.after_each_token = options_.legacy.value_or(rule_->legacy);
  spaces.remove_extra = model->remove_extra_spaces;
  FillFromSentencePieces(std::move(model->vocabulary), spaces, data);
  return absl::OkStatus();
}

void HfTokenizerClass::SetDefaultTokens(TokenizerData* data) const {
  for (const auto& [text, otherwise] :
       {std::pair(&data->bos_token, rule_->bos), std::pair(&data->eos_token, rule_->eos),
        std::pair(&data->unk_token_text, rule_->unk)}) {
    if (text->empty() && IdOfToken(*data, otherwise) >= 0) *text = otherwise;
  }
}

void HfTokenizerClass::SetPostProcessor(TokenizerData* data) const {
  const auto add = [&](const std::string& token, std::vector<int32_t>* ids) {
    if (const int32_t id = IdOfToken(*data, token); id >= 0) ids->push_back(id);
  };
  PostProcessor& post = data->post_processor;
  if (rule_->cls_and_sep) {
    add(options_.cls_token.empty() ? rule_->bos : options_.cls_token, &post.prefix_ids);
    add(options_.sep_token.empty() ? rule_->eos : options_.sep_token, &post.suffix_ids);
    return;
  }
  data->add_bos_token = options_.add_bos.value_or(rule_->add_bos);
  if (data->add_bos_token) add(data->bos_token, &post.prefix_ids);
  if (options_.add_eos.value_or(false)) add(data->eos_token, &post.suffix_ids);
}

}  // namespace somnus
