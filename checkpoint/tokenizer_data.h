#pragma once
// A tokenizer as data, read from a Hugging Face directory or from GGUF metadata. The tokenizer itself is
// text/tokenizer.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace somnus {

// How SentencePiece writes a space in its tokens.
inline constexpr char kPieceSpace[] = "\u2581";

struct AddedToken {
  int32_t id;
  std::string content;
  bool special = false;                 // hidden by skip_special_tokens
  bool lstrip = false, rstrip = false;  // also swallow the white space before / after
  bool single_word = false;
  bool normalized = false;
};

// A step of the normalizer, in order.
struct NormalizerStep {
  enum class Kind {
    kNfc,
    kNfd,
    kNfkc,
    kNfkd,
    kLowercase,
    kPrepend,  // puts `content` before a text that is not empty
    kReplace,  // `content` goes where `pattern` matches
    kStrip,    // removes white space at the ends that `left` and `right` name
  };
  Kind kind;
  std::string content;
  std::string pattern;
  bool pattern_is_regex = false;
  bool left = false, right = false;
};

// A step of the decoder, in order. Steps before kFuse change each token, a step after kFuse the whole text.
struct DecoderStep {
  enum class Kind {
    kByteLevel,     // maps the 256 printable characters back to bytes
    kReplace,       // `content` goes where `pattern` (a literal) matches
    kByteFallback,  // <0x0A> is a byte
    kFuse,
    kStrip,      // removes up to `count` times `content` from the start
    kMetaspace,  // `pattern` becomes a space, or nothing in the first token when `count` is 1
  };
  Kind kind;
  std::string pattern, content;
  int32_t count = 0;
};

// One step of the pre-tokenizer, in order.
struct PreTokenizerStep {
  enum class Kind {
    kSplit,   // Hugging Face "Split": `pattern` is a regular expression (or a literal), `behavior` as there
    kDigits,  // splits numbers off; `individual_digits`
    kByteLevel,  // maps bytes to the 256 printable characters; `use_regex` splits by GPT-2's pattern first
    kWhitespaceSplit,
    kPunctuation,
    kMetaspace,  // spaces become `pattern`, which also goes before the text as `prepend` says; with `split`
                 // each `pattern` begins a piece
  };
  enum class Prepend {
    kNever,
    kFirst,
    kAlways
  };  // kFirst: only where the text begins, not after added tokens
  Kind kind;
  std::string pattern;
  bool pattern_is_regex = true;
  bool invert = false;
  std::string behavior = "Isolated";  // Isolated, Removed, MergedWithPrevious, MergedWithNext, Contiguous
  bool individual_digits = false;
  bool add_prefix_space = false;
  bool use_regex = true;
  Prepend prepend = Prepend::kNever;
  bool split = true;
};

// The tokens that the post-processor puts around a single sequence when special tokens are asked for.
struct PostProcessor {
  std::vector<int32_t> prefix_ids;
  std::vector<int32_t> suffix_ids;
};

struct TokenizerData {
  // Tokens by id, in tokenizer.json's own (byte-level) alphabet; empty string: unused id.
  std::vector<std::string> tokens;
  std::vector<std::pair<std::string, std::string>> merges;  // in rank order
  // SentencePiece's BPE, in place of `merges`: scores by id. Two neighbours merge when together they spell a
  // token, the token of the highest score first. NaN: no merge forms this token. Empty: `merges` counts.
  std::vector<float> merge_scores;
  std::vector<AddedToken> added_tokens;
  std::vector<NormalizerStep> normalizer;
  std::vector<PreTokenizerStep> pre_tokenizer;
  // Empty: tokens are joined, after kByteLevel if the pre-tokenizer has kByteLevel and kByteFallback if
  // `byte_fallback` is set.
  std::vector<DecoderStep> decoder;
  PostProcessor post_processor;
  bool ignore_merges = false;  // Llama 3: a pre-token that is in the vocabulary is one token
  bool byte_fallback = false;
  std::string unk_token;
  bool fuse_unk = false;              // unknown characters in a row are one unk_token
  std::string chat_template;          // Jinja; empty: none. Of several named templates, "default"
  std::string tool_template;          // "tool_use", for requests with tools; empty: chat_template is used
  std::string chat_template_problem;  // why no template of several is taken; empty: no problem
  // Special tokens that chat templates refer to.
  std::string bos_token, eos_token, unk_token_text, pad_token;
  std::vector<std::string> additional_special_tokens;  // further special tokens of the files
  bool add_bos_token = false;
  // Tokens that end an answer, beside the end tokens of the model's own configuration.
  std::vector<int32_t> end_token_ids;
  // Only for directories: added tokens whose text is a known end of a turn (end_markers.h). Where no file
  // names an end token, these tokens end an answer.
  std::vector<int32_t> end_markers;
  // Defects of the files that the reader has corrected, for the log.
  std::vector<std::string> warnings;
};

}  // namespace somnus
