#include "text/tokenizer/bpe.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <queue>

#include "absl/hash/hash.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "text/tokenizer/unicode.h"

namespace somnus {
namespace {

constexpr size_t kMaxCachedBytes = 64;  // longer pieces are rare; one request could fill the cache with them
constexpr size_t kMaxWordsPerShard = 2048;  // 16 shards: about 4 MB at most (an estimate)
constexpr size_t kShortWord = 48;           // up to this length repeated scans are faster than a heap
constexpr size_t kMergesAhead = 16;
// AddScoredMerges looks up each place where a token could be cut. SentencePiece's own pieces have 16
// characters at most, Gemma's runs of spaces 93 bytes.
constexpr size_t kMaxScoredBytes = 512;
constexpr uint32_t kNoMerge = std::numeric_limits<uint32_t>::max();

uint64_t PairKey(int32_t left, int32_t right) {
  return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) | static_cast<uint32_t>(right);
}

// The first place behind `begin` where kPieceSpace follows other text; npos: no such place.
size_t NextWord(absl::string_view text, size_t begin) {
  constexpr size_t kSize = sizeof(kPieceSpace) - 1;
  for (size_t at = begin; (at = text.find(kPieceSpace, at)) != absl::string_view::npos; at += kSize) {
    const bool follows = at >= begin + kSize && text.substr(at - kSize, kSize) == kPieceSpace;
    if (at > begin && !follows) return at;
  }
  return absl::string_view::npos;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Bpe>> Bpe::Create(const TokenizerData& data, bool byte_pieces) {
  std::unique_ptr<Bpe> bpe(new Bpe);
  bpe->byte_pieces_ = byte_pieces;
  bpe->ignore_merges_ = data.ignore_merges;
  bpe->byte_fallback_ = data.byte_fallback;
  bpe->fuse_unk_ = data.fuse_unk;
  bpe->vocab_.reserve(data.tokens.size());
  for (size_t id = 0; id < data.tokens.size(); ++id) {
    if (!data.tokens[id].empty()) bpe->vocab_.emplace(data.tokens[id], static_cast<int32_t>(id));
  }
  if (!data.unk_token.empty()) {
    bpe->unk_id_ = bpe->Lookup(data.unk_token);
    if (bpe->unk_id_ < 0) return absl::InvalidArgumentError("unk_token is not in the vocabulary");
  }
  for (int b = 0; b < 256; ++b) {
    bpe->byte_ids_[b] = byte_pieces ? bpe->Lookup(ByteToAlphabet(static_cast<uint8_t>(b))) : -1;
    bpe->fallback_ids_[b] = data.byte_fallback ? bpe->Lookup(absl::StrFormat("<0x%02X>", b)) : -1;
  }
  RETURN_IF_ERROR(data.merge_scores.empty() ? bpe->AddMerges(data) : bpe->AddScoredMerges(data));
  bpe->FindWordStarts(data);
  return bpe;
}

absl::Status Bpe::AddMerges(const TokenizerData& data) {
  merges_.reserve(data.merges.size());
  // A vocabulary of 128 k needs nearly a million lookups, which miss the CPU's caches: prefetch some merges
  // ahead.
  std::array<std::string, kMergesAhead> wholes;
  for (size_t ahead = 0; ahead < data.merges.size() + kMergesAhead; ++ahead) {
    if (ahead >= kMergesAhead)
      RETURN_IF_ERROR(AddMerge(data, ahead - kMergesAhead, wholes[ahead % kMergesAhead]));
    if (ahead >= data.merges.size()) continue;
    const auto& [left, right] = data.merges[ahead];
    std::string& whole = wholes[ahead % kMergesAhead];
    whole.assign(left).append(right);
    for (const absl::string_view token :
         {absl::string_view(left), absl::string_view(right), absl::string_view(whole)}) {
      vocab_.prefetch(token);
    }
  }
  return absl::OkStatus();
}

absl::Status Bpe::AddMerge(const TokenizerData& data, size_t rank, const std::string& whole) {
  const auto& [left, right] = data.merges[rank];
  const int32_t left_id = Lookup(left), right_id = Lookup(right), id = Lookup(whole);
  if (left_id < 0 || right_id < 0 || id < 0) {
    const std::string& missing = left_id < 0 ? left : right_id < 0 ? right : whole;
    return absl::InvalidArgumentError(
        absl::StrCat("merge ", rank, " needs token \"", missing, "\", which is not in the vocabulary"));
  }
  merges_[PairKey(left_id, right_id)] = {static_cast<uint32_t>(rank), id};
  return absl::OkStatus();
}

absl::Status Bpe::AddScoredMerges(const TokenizerData& data) {
  const std::vector<float>& scores = data.merge_scores;
  if (scores.size() != data.tokens.size()) return absl::InvalidArgumentError("not every token has a score");
  std::vector<float> order;
  std::copy_if(scores.begin(), scores.end(), std::back_inserter(order),
               [](float s) { return !std::isnan(s); });
  std::sort(order.begin(), order.end(), std::greater<>());
  order.erase(std::unique(order.begin(), order.end()), order.end());
  merges_.reserve(2 * scores.size());
  for (size_t id = 0; id < scores.size(); ++id) {
    if (std::isnan(scores[id])) continue;
    const absl::string_view token = data.tokens[id];
    if (token.size() > kMaxScoredBytes)
      return absl::InvalidArgumentError(
          absl::StrCat("token ", id, " is longer than ", kMaxScoredBytes, " bytes"));
    const auto place = std::lower_bound(order.begin(), order.end(), scores[id], std::greater<>());
    const auto rank = static_cast<uint32_t>(place - order.begin());
    for (size_t cut = 1; cut < token.size(); ++cut) {
      if ((token[cut] & 0xC0) == 0x80) continue;
      const int32_t left = Lookup(token.substr(0, cut));
      const int32_t right = left < 0 ? -1 : Lookup(token.substr(cut));
      if (right >= 0) merges_[PairKey(left, right)] = {rank, static_cast<int32_t>(id)};
    }
  }
  return absl::OkStatus();
}

int32_t Bpe::Lookup(absl::string_view token) const {
  const auto it = vocab_.find(token);
  return it == vocab_.end() ? -1 : it->second;
}

const Bpe::Merge* Bpe::FindMerge(int32_t left, int32_t right) const {
  const auto it = merges_.find(PairKey(left, right));
  return it == merges_.end() ? nullptr : &it->second;
}

void Bpe::FindWordStarts(const TokenizerData& data) {
  if (byte_pieces_ || Lookup(kPieceSpace) < 0) return;
  cuts_words_ = std::none_of(data.tokens.begin(), data.tokens.end(), [](absl::string_view token) {
    return NextWord(token, 0) != absl::string_view::npos;
  });
}

void Bpe::Encode(absl::string_view piece, std::vector<int32_t>* ids) const {
  size_t begin = 0;
  while (cuts_words_ && begin < piece.size()) {
    const size_t next = NextWord(piece, begin);
    if (next == absl::string_view::npos) break;
    EncodeWord(piece.substr(begin, next - begin), ids);
    begin = next;
  }
  if (begin < piece.size()) EncodeWord(piece.substr(begin), ids);
}

void Bpe::EncodeWord(absl::string_view piece, std::vector<int32_t>* ids) const {
  if (piece.size() > kMaxCachedBytes) return EncodeUncached(piece, ids);
  Shard& shard = cache_[absl::Hash<absl::string_view>()(piece) % cache_.size()];
  {
    absl::MutexLock lock(&shard.mutex);
    if (const auto it = shard.words.find(piece); it != shard.words.end()) {
      ids->insert(ids->end(), it->second.begin(), it->second.end());
      return;
    }
  }
  const size_t first = ids->size();
  EncodeUncached(piece, ids);
  absl::MutexLock lock(&shard.mutex);
  if (shard.words.size() >= kMaxWordsPerShard) shard.words.clear();
  shard.words.try_emplace(std::string(piece), ids->begin() + static_cast<ptrdiff_t>(first), ids->end());
}

void Bpe::EncodeUncached(absl::string_view piece, std::vector<int32_t>* ids) const {
  if (ignore_merges_) {
    const int32_t id = byte_pieces_ ? Lookup(BytesToAlphabet(piece)) : Lookup(piece);
    if (id >= 0) return ids->push_back(id);
  }
  std::vector<int32_t> symbols;
  symbols.reserve(piece.size());
  AppendSymbols(piece, &symbols);
  symbols.size() <= kShortWord ? MergeShort(&symbols) : MergeLong(&symbols);
  ids->insert(ids->end(), symbols.begin(), symbols.end());
}

void Bpe::AppendSymbols(absl::string_view piece, std::vector<int32_t>* symbols) const {
  if (byte_pieces_) {
    for (const char c : piece) {
      const auto byte = static_cast<uint8_t>(c);
      if (byte_ids_[byte] >= 0) {
        symbols->push_back(byte_ids_[byte]);
      } else {
        AppendUnknown(ByteToAlphabet(byte), symbols);
      }
    }
    return;
  }
  for (size_t pos = 0; pos < piece.size();) {
    const absl::string_view character = piece.substr(pos, DecodeUtf8(piece, pos).length);
    const int32_t id = Lookup(character);
    if (id >= 0) {
      symbols->push_back(id);
    } else {
      AppendUnknown(character, symbols);
    }
    pos += character.size();
  }
}

void Bpe::AppendUnknown(absl::string_view character, std::vector<int32_t>* symbols) const {
  bool all = byte_fallback_;
  for (const char c : character) all = all && fallback_ids_[static_cast<uint8_t>(c)] >= 0;
  if (all) {
    for (const char c : character) symbols->push_back(fallback_ids_[static_cast<uint8_t>(c)]);
  } else if (unk_id_ >= 0 && !(fuse_unk_ && !symbols->empty() && symbols->back() == unk_id_)) {
    symbols->push_back(unk_id_);
  }
}

void Bpe::MergeShort(std::vector<int32_t>* symbols) const {
  std::vector<int32_t>& s = *symbols;
  std::array<Merge, kShortWord> merge;  // of s[i] and s[i + 1]
  const auto refresh = [&](size_t i) {
    const Merge* found = FindMerge(s[i], s[i + 1]);
    merge[i] = found == nullptr ? Merge{kNoMerge, -1} : *found;
  };
  for (size_t i = 0; i + 1 < s.size(); ++i) refresh(i);
  while (s.size() > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < s.size(); ++i) {
      if (merge[i].rank < merge[best].rank) best = i;
    }
    if (merge[best].rank == kNoMerge) return;
    s[best] = merge[best].id;
    s.erase(s.begin() + static_cast<ptrdiff_t>(best) + 1);
    for (size_t i = best + 1; i + 1 < s.size(); ++i) merge[i] = merge[i + 1];
    if (best + 1 < s.size()) refresh(best);
    if (best > 0) refresh(best - 1);
  }
}

void Bpe::MergeLong(std::vector<int32_t>* symbols) const {
  struct Node {
    int32_t id;
    int32_t previous, next;  // -1: at the end
    uint32_t rank;           // of the merge with `next`; kNoMerge also for a node that was merged away
    int32_t merged;          // the token that the merge gives
  };
  const auto count = static_cast<int32_t>(symbols->size());
  std::vector<Node> nodes(symbols->size());
  // Each entry is a rank, then a position; an entry is stale when the rank of the node has changed.
  std::vector<uint64_t> entries;
  entries.reserve(nodes.size());
  for (int32_t i = 0; i < count; ++i) {
    nodes[i] = {(*symbols)[i], i - 1, i + 1 < count ? i + 1 : -1, kNoMerge, -1};
  }
  const auto refresh = [&](int32_t left) {
    Node& node = nodes[left];
    const Merge* merge = node.next < 0 ? nullptr : FindMerge(node.id, nodes[node.next].id);
    node.rank = merge == nullptr ? kNoMerge : merge->rank;
    node.merged = merge == nullptr ? -1 : merge->id;
    return static_cast<uint64_t>(node.rank) << 32 | static_cast<uint32_t>(left);
  };
  for (int32_t i = 0; i + 1 < count; ++i) {
    if (const uint64_t entry = refresh(i); nodes[i].rank != kNoMerge) entries.push_back(entry);
  }
  std::priority_queue<uint64_t, std::vector<uint64_t>, std::greater<>> queue({}, std::move(entries));
  while (!queue.empty()) {
    const uint64_t top = queue.top();
    queue.pop();
    const auto position = static_cast<int32_t>(top & 0xFFFFFFFF);
    Node& left = nodes[position];
    if (left.rank != top >> 32) continue;
    Node& right = nodes[left.next];
    left.id = left.merged;
    left.next = right.next;
    right.rank = kNoMerge;
    if (left.next >= 0) nodes[left.next].previous = position;
    for (const int32_t changed : {left.previous, position}) {
      if (changed < 0) continue;
      if (const uint64_t entry = refresh(changed); nodes[changed].rank != kNoMerge) queue.push(entry);
    }
  }
  symbols->clear();
  for (int32_t i = 0; i >= 0 && count > 0; i = nodes[i].next) symbols->push_back(nodes[i].id);
}

}  // namespace somnus
