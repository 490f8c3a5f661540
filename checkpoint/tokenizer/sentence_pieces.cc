#include "checkpoint/tokenizer/sentence_pieces.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_replace.h"

namespace somnus {
namespace {

NormalizerStep Replace(std::string pattern, bool is_regex, std::string content) {
  NormalizerStep step{NormalizerStep::Kind::kReplace};
  step.pattern = std::move(pattern);
  step.pattern_is_regex = is_regex;
  step.content = std::move(content);
  return step;
}

void AddSteps(const SentencePieceSpaces& spaces, TokenizerData* data) {
  if (spaces.remove_extra) {
    data->normalizer.push_back(Replace(R"(\A +| +\z)", true, ""));
    data->normalizer.push_back(Replace(" {2,}", true, " "));
  }
  if (spaces.prefix && spaces.after_each_token) {
    NormalizerStep prepend{NormalizerStep::Kind::kPrepend};
    prepend.content = kPieceSpace;
    data->normalizer.push_back(std::move(prepend));
  }
  data->normalizer.push_back(Replace(" ", false, kPieceSpace));
  if (spaces.prefix && !spaces.after_each_token) {
    PreTokenizerStep first{PreTokenizerStep::Kind::kMetaspace};
    first.pattern = kPieceSpace;
    first.prepend = PreTokenizerStep::Prepend::kFirst;
    first.split = false;
    data->pre_tokenizer.push_back(std::move(first));
  }
  using Kind = DecoderStep::Kind;
  data->decoder = {{Kind::kReplace, kPieceSpace, " "}, {Kind::kByteFallback}, {Kind::kFuse}};
  if (spaces.prefix) data->decoder.push_back({Kind::kStrip, "", " ", 1});
}

}  // namespace

void FillFromSentencePieces(SentencePieces pieces, const SentencePieceSpaces& spaces, TokenizerData* data) {
  data->tokens = std::move(pieces.pieces);
  data->merge_scores = std::move(pieces.scores);
  data->fuse_unk = true;
  for (size_t id = 0; id < data->tokens.size(); ++id) {
    const PieceType type = pieces.types[id];
    if (type == PieceType::kNormal) continue;
    data->merge_scores[id] = std::nanf("");
    std::string& piece = data->tokens[id];
    if (type == PieceType::kByte) data->byte_fallback = true;
    if (type == PieceType::kUnused) piece.clear();
    if (type == PieceType::kByte || piece.empty()) continue;
    if (type == PieceType::kUnknown && data->unk_token.empty()) data->unk_token = piece;
    AddedToken token{};
    token.id = static_cast<int32_t>(id);
    // Texts have spaces where pieces have kPieceSpace.
    if (type == PieceType::kUserDefined) piece = absl::StrReplaceAll(piece, {{kPieceSpace, " "}});
    token.content = piece;
    token.special = type != PieceType::kUserDefined;
    data->added_tokens.push_back(std::move(token));
  }
  AddSteps(spaces, data);
}

}  // namespace somnus
