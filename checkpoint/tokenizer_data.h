#pragma once
// A tokenizer as data, read from tokenizer.json + tokenizer_config.json or from GGUF metadata. The tokenizer
// itself is coordinator/tokenizer.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace somnus {

struct AddedToken {
  int32_t id;
  std::string content;
  bool special = false;                 // hidden by skip_special_tokens
  bool lstrip = false, rstrip = false;  // also swallow the white space before / after
  bool single_word = false;
  bool normalized = false;
};

// One step of the pre-tokenizer, in order.
struct PreTokenizerStep {
  enum class Kind {
    kSplit,   // Hugging Face "Split": `pattern` is a regular expression (or a literal), `behavior` as there
    kDigits,  // splits numbers off; `individual_digits`
    kByteLevel,  // maps bytes to the 256 printable characters; `use_regex` splits by GPT-2's pattern first
    kWhitespaceSplit,
    kPunctuation,
  };
  Kind kind;
  std::string pattern;
  bool pattern_is_regex = true;
  bool invert = false;
  std::string behavior = "Isolated";  // Isolated, Removed, MergedWithPrevious, MergedWithNext, Contiguous
  bool individual_digits = false;
  bool add_prefix_space = false;
  bool use_regex = true;
};

// What the post-processor puts around a single sequence when special tokens are asked for.
struct PostProcessor {
  std::vector<int32_t> prefix_ids;
  std::vector<int32_t> suffix_ids;
};

struct TokenizerData {
  // Tokens by id, in tokenizer.json's own (byte-level) alphabet; empty string: unused id.
  std::vector<std::string> tokens;
  std::vector<std::pair<std::string, std::string>> merges;  // in rank order
  std::vector<AddedToken> added_tokens;
  bool nfc = false;  // normalizer: NFC
  bool nfd = false, nfkc = false, nfkd = false, lowercase = false;
  std::vector<PreTokenizerStep> pre_tokenizer;
  PostProcessor post_processor;
  bool ignore_merges = false;  // Llama 3: a pre-token that is in the vocabulary is one token
  bool byte_fallback = false;
  std::string unk_token;
  bool fuse_unk = false;      // unknown characters in a row are one unk_token
  std::string chat_template;  // Jinja; empty: none. With several named ones, "default"
  // Special tokens that chat templates refer to.
  std::string bos_token, eos_token, unk_token_text, pad_token;
  bool add_bos_token = false;
};

}  // namespace somnus
