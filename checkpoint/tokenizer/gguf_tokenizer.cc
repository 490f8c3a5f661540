#include "checkpoint/tokenizer/gguf_tokenizer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/tokenizer/end_markers.h"
#include "checkpoint/tokenizer/sentence_pieces.h"
#include "checkpoint/tokenizer/split_patterns.h"

// GGUF stores no pre-tokenizer, only the name of a pre-tokenizer of llama.cpp. The table below gives the
// meaning of these names, taken from the Hugging Face files of the models.

namespace somnus {
namespace {

using Kind = PreTokenizerStep::Kind;

constexpr char kTokenizerModelKey[] = "tokenizer.ggml.model";

constexpr char kLineEnd[] = R"([\r\n])";
// DeepSeek's first tokenizers divide Chinese and Korean from letters by this pattern.
constexpr char kDeepseekCjk[] = R"([一-龥ࠀ-一가-퟿]+)";

// Values of tokenizer.ggml.token_type.
constexpr int64_t kControlToken = 3, kUserDefinedToken = 4, kUnusedToken = 5;

// How a named pre-tokenizer splits text.
enum class Recipe {
  kGpt2,
  kDigitsGpt2,
  kLlama3,
  kQwen2,
  kTekken,
  kGpt4o,
  kDeepseekLlm,
  kDeepseekCoder,
  kDeepseekV3,
  kKimiK2,
  kDefault
};

struct NamedPreTokenizer {
  const char* name;
  Recipe recipe;
  bool ignore_merges = false;
  bool add_bos = false;  // unless the file says otherwise
  bool nfc = false;
};

constexpr NamedPreTokenizer kPreTokenizers[] = {
    {"default", Recipe::kDefault},
    {"gpt-2", Recipe::kGpt2},
    {"phi-2", Recipe::kGpt2},
    {"mpt", Recipe::kGpt2},
    {"olmo", Recipe::kGpt2},
    {"mellum", Recipe::kGpt2},
    {"exaone4", Recipe::kGpt2},
    {"smollm", Recipe::kDigitsGpt2},
    {"starcoder", Recipe::kDigitsGpt2},
    {"refact", Recipe::kDigitsGpt2},
    {"command-r", Recipe::kDigitsGpt2},
    {"codeshell", Recipe::kDigitsGpt2},
    {"exaone", Recipe::kDigitsGpt2},
    {"minerva-7b", Recipe::kDigitsGpt2},
    {"llama-bpe", Recipe::kLlama3, true, true},
    {"llama3", Recipe::kLlama3, true, true},
    {"llama-v3", Recipe::kLlama3, true, true},
    {"falcon3", Recipe::kLlama3, true, true},
    {"pixtral", Recipe::kLlama3, true, true},
    {"dbrx", Recipe::kLlama3},
    {"smaug-bpe", Recipe::kLlama3},
    {"glm4", Recipe::kLlama3},
    {"chatglm-bpe", Recipe::kLlama3},
    {"qwen2", Recipe::kQwen2, false, false, true},
    {"megrez", Recipe::kQwen2, false, false, true},
    {"deepseek-r1-qwen", Recipe::kQwen2},
    {"stablelm2", Recipe::kQwen2},
    {"tekken", Recipe::kTekken, true, true},
    {"gpt-4o", Recipe::kGpt4o},
    {"llama4", Recipe::kGpt4o},
    {"kanana2", Recipe::kGpt4o},
    {"deepseek-llm", Recipe::kDeepseekLlm},
    {"deepseek-coder", Recipe::kDeepseekCoder},
    {"deepseek-v3", Recipe::kDeepseekV3},
    {"kimi-k2", Recipe::kKimiK2, true},  // tiktoken looks a whole piece up before it merges
};

PreTokenizerStep Split(const char* pattern) {
  PreTokenizerStep step;
  step.kind = Kind::kSplit;
  step.pattern = pattern;
  return step;
}

// The steps of DeepSeek's first tokenizers, those of DeepSeek LLM and DeepSeek Coder.
std::vector<PreTokenizerStep> FirstDeepseekSteps(Recipe recipe, const PreTokenizerStep& digits,
                                                 const PreTokenizerStep& bytes) {
  if (recipe == Recipe::kDeepseekCoder) {
    return {
        Split(kLineEnd), Split(R"(\s?\p{L}+)"), Split(R"(\s?\p{P}+)"), Split(kDeepseekCjk), digits, bytes};
  }
  return {Split(kLineEnd),
          Split(kDeepseekLlmLetters),
          Split(kDeepseekLlmSigns),
          Split(R"(\s+$)"),
          Split(kDeepseekCjk),
          digits,
          bytes};
}

std::vector<PreTokenizerStep> StepsOf(Recipe recipe) {
  PreTokenizerStep bytes;  // maps bytes to characters; splits by GPT-2's pattern only where nothing else does
  bytes.kind = Kind::kByteLevel;
  bytes.use_regex = recipe == Recipe::kGpt2 || recipe == Recipe::kDigitsGpt2;
  PreTokenizerStep digits;
  digits.kind = Kind::kDigits;
  digits.individual_digits = true;
  switch (recipe) {
    case Recipe::kGpt2:
      return {bytes};
    case Recipe::kDigitsGpt2:
      return {digits, bytes};
    case Recipe::kLlama3:
      return {Split(kLlama3Pattern), bytes};
    case Recipe::kQwen2:
      return {Split(kQwen2Pattern), bytes};
    case Recipe::kTekken:
      return {Split(kTekkenPattern), bytes};
    case Recipe::kGpt4o:
      return {Split(kGpt4oPattern), bytes};
    case Recipe::kDeepseekV3:
      return {Split(R"(\p{N}{1,3})"), Split("[一-龥぀-ゟ゠-ヿ]+"), Split(kDeepseekV3Pattern), bytes};
    case Recipe::kKimiK2:
      return {Split(kKimiK2Pattern), bytes};
    case Recipe::kDeepseekLlm:
    case Recipe::kDeepseekCoder:
      return FirstDeepseekSteps(recipe, digits, bytes);
    case Recipe::kDefault:
      return {Split(R"([\p{P}\$\+<=>\^~\|]+)"), Split(kGpt2Pattern), Split(R"(\p{N}+)"),
              Split("[0-9][0-9][0-9]"), bytes};
  }
  return {bytes};
}

absl::StatusOr<NamedPreTokenizer> FindPreTokenizer(const GgufFile& gguf) {
  constexpr char kKey[] = "tokenizer.ggml.pre";
  ASSIGN_OR_RETURN(const std::string name, gguf.String(kKey, "default"));
  for (const NamedPreTokenizer& candidate : kPreTokenizers) {
    if (name == candidate.name) return candidate;
  }
  return gguf.Unsupported(kKey, name);
}

absl::Status ReadTokens(const GgufFile& gguf, TokenizerData* data) {
  ASSIGN_OR_RETURN(data->tokens, gguf.Strings("tokenizer.ggml.tokens"));
  if (data->tokens.size() > (1u << 28)) return gguf.Bad("tokenizer.ggml.tokens", "too many");
  constexpr char kTypes[] = "tokenizer.ggml.token_type";
  if (!gguf.Has(kTypes)) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::vector<int64_t> types, gguf.Ints(kTypes));
  if (types.size() != data->tokens.size()) {
    return gguf.Bad(kTypes, absl::StrCat(types.size(), " types for ", data->tokens.size(), " tokens"));
  }
  for (size_t id = 0; id < types.size(); ++id) {
    std::string& text = data->tokens[id];
    if (types[id] == kUnusedToken) {
      text.clear();
    } else if ((types[id] == kControlToken || types[id] == kUserDefinedToken) && !text.empty()) {
      AddedToken token{};
      token.id = static_cast<int32_t>(id);
      token.content = text;
      token.special = types[id] == kControlToken;
      data->added_tokens.push_back(std::move(token));
    }
  }
  return absl::OkStatus();
}

absl::Status ReadMerges(const GgufFile& gguf, TokenizerData* data) {
  constexpr char kKey[] = "tokenizer.ggml.merges";
  ASSIGN_OR_RETURN(const std::vector<std::string> merges, gguf.Strings(kKey));
  data->merges.reserve(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    // From the second byte on: a token may itself begin with a space.
    const size_t space = merges[rank].find(' ', 1);
    if (space == std::string::npos || space + 1 == merges[rank].size()) {
      return gguf.Bad(kKey, absl::StrCat("element ", rank, " is not two tokens with a space between them"));
    }
    data->merges.emplace_back(merges[rank].substr(0, space), merges[rank].substr(space + 1));
  }
  return absl::OkStatus();
}

// Reads the vocabulary of SentencePiece's BPE: Llama 2, Mistral 7B, TinyLlama, Gemma, Phi-3.
absl::Status ReadPieces(const GgufFile& gguf, TokenizerData* data) {
  constexpr char kScores[] = "tokenizer.ggml.scores", kTypes[] = "tokenizer.ggml.token_type";
  SentencePieces pieces;
  ASSIGN_OR_RETURN(pieces.pieces, gguf.Strings("tokenizer.ggml.tokens"));
  ASSIGN_OR_RETURN(pieces.scores, gguf.Floats(kScores));
  ASSIGN_OR_RETURN(const std::vector<int64_t> types, gguf.Ints(kTypes));
  for (const auto& [key, size] :
       {std::pair(kScores, pieces.scores.size()), std::pair(kTypes, types.size())}) {
    if (size != pieces.pieces.size())
      return gguf.Bad(key, absl::StrCat(size, " elements for ", pieces.pieces.size(), " tokens"));
  }
  for (const int64_t type : types) {
    if (type < 1 || type > 6) return gguf.Unsupported(kTypes, absl::StrCat("type ", type));
    pieces.types.push_back(static_cast<PieceType>(type));
  }
  SentencePieceSpaces spaces;
  ASSIGN_OR_RETURN(spaces.prefix, gguf.Bool("tokenizer.ggml.add_space_prefix", true));
  FillFromSentencePieces(std::move(pieces), spaces, data);
  return absl::OkStatus();
}

// GGUF files do not say which added tokens swallow the white space that follows: Phi-3's tokens do.
void StripAfterTokensOfPhi3(TokenizerData* data) {
  for (AddedToken& token : data->added_tokens) {
    const std::string& text = token.content;
    token.rstrip = text != "<unk>" && text != "<s>" && text != "<|endoftext|>";
  }
}

// Sets the text of a special token and its id (-1: no token). Converters have written ids beyond the
// vocabulary: such an id counts as not given. `otherwise`: the id where the file gives no id (-1: no token).
absl::Status ReadSpecial(const GgufFile& gguf, absl::string_view name, int64_t otherwise, TokenizerData* data,
                         std::string* text, int32_t* id) {
  const std::string key = absl::StrCat("tokenizer.ggml.", name, "_token_id");
  ASSIGN_OR_RETURN(int64_t value, gguf.Int(key, otherwise));
  *id = -1;
  if (value < 0 || value == 0xFFFFFFFF) return absl::OkStatus();
  const auto size = static_cast<int64_t>(data->tokens.size());
  if (value >= size && gguf.Has(key)) {
    data->warnings.push_back(absl::StrCat(key, ": ", value, " is outside the vocabulary of ", size,
                                          " tokens, and is taken as not given"));
  }
  if (value >= size) {
    value = otherwise;
    if (value < 0 || value >= size) return absl::OkStatus();
  }
  *id = static_cast<int32_t>(value);
  *text = data->tokens[*id];
  return absl::OkStatus();
}

// `pieces`: a SentencePiece vocabulary, for which missing ids have defaults.
absl::Status ReadSpecials(const GgufFile& gguf, bool pieces, bool default_add_bos, TokenizerData* data) {
  int32_t bos = -1, eos = -1, ignored = -1;
  std::string no_text;
  RETURN_IF_ERROR(ReadSpecial(gguf, "bos", pieces ? 1 : -1, data, &data->bos_token, &bos));
  RETURN_IF_ERROR(ReadSpecial(gguf, "eos", pieces ? 2 : -1, data, &data->eos_token, &eos));
  RETURN_IF_ERROR(ReadSpecial(gguf, "unknown", pieces ? 0 : -1, data, &data->unk_token_text, &ignored));
  RETURN_IF_ERROR(ReadSpecial(gguf, "padding", -1, data, &data->pad_token, &ignored));
  AddEndToken(eos, data);
  for (const char* name : {"eot", "eom"}) {
    RETURN_IF_ERROR(ReadSpecial(gguf, name, -1, data, &no_text, &ignored));
    AddEndToken(ignored, data);
  }
  ASSIGN_OR_RETURN(data->add_bos_token, gguf.Bool("tokenizer.ggml.add_bos_token", default_add_bos));
  ASSIGN_OR_RETURN(const bool add_eos, gguf.Bool("tokenizer.ggml.add_eos_token", false));
  if (data->add_bos_token && bos >= 0) data->post_processor.prefix_ids = {bos};
  if (add_eos && eos >= 0) data->post_processor.suffix_ids = {eos};
  return absl::OkStatus();
}

// Reads byte-level BPE. `add_bos`: the default for a file without the key add_bos_token.
absl::Status ReadByteLevel(const GgufFile& gguf, TokenizerData* data, bool* add_bos) {
  RETURN_IF_ERROR(ReadTokens(gguf, data));
  RETURN_IF_ERROR(ReadMerges(gguf, data));
  ASSIGN_OR_RETURN(const NamedPreTokenizer pre, FindPreTokenizer(gguf));
  data->pre_tokenizer = StepsOf(pre.recipe);
  data->ignore_merges = pre.ignore_merges;
  if (pre.nfc) data->normalizer.push_back({NormalizerStep::Kind::kNfc});
  ASSIGN_OR_RETURN(const bool prefix_space, gguf.Bool("tokenizer.ggml.add_space_prefix", false));
  data->pre_tokenizer.back().add_prefix_space = prefix_space;
  *add_bos = pre.add_bos;
  return absl::OkStatus();
}

}  // namespace

absl::Status FindGgufTokenizer(const GgufFile& gguf) {
  if (gguf.Has(kTokenizerModelKey)) return absl::OkStatus();
  return absl::NotFoundError(
      absl::StrCat(gguf.name(), ": no tokenizer: key ", kTokenizerModelKey, " is missing"));
}

absl::StatusOr<TokenizerData> ReadGgufTokenizer(const GgufFile& gguf) {
  RETURN_IF_ERROR(FindGgufTokenizer(gguf));
  ASSIGN_OR_RETURN(const std::string model, gguf.String(kTokenizerModelKey, std::nullopt));
  const bool pieces = model == "llama";
  if (!pieces && model != "gpt2")
    return gguf.Unsupported(kTokenizerModelKey, absl::StrCat("a tokenizer of kind ", model));
  TokenizerData data;
  bool add_bos = true;
  if (pieces) {
    RETURN_IF_ERROR(ReadPieces(gguf, &data));
    ASSIGN_OR_RETURN(const std::string architecture, gguf.String("general.architecture", ""));
    if (architecture == "phi3") StripAfterTokensOfPhi3(&data);
  } else {
    RETURN_IF_ERROR(ReadByteLevel(gguf, &data, &add_bos));
  }
  RETURN_IF_ERROR(ReadSpecials(gguf, pieces, add_bos, &data));
  ASSIGN_OR_RETURN(data.chat_template, gguf.String("tokenizer.chat_template", ""));
  ASSIGN_OR_RETURN(data.tool_template, gguf.String("tokenizer.chat_template.tool_use", ""));
  FindEndMarkers(&data);
  return data;
}

}  // namespace somnus
