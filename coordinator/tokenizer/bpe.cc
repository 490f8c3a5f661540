#include "coordinator/tokenizer/bpe.h"

#include <limits>
#include <queue>

#include "absl/hash/hash.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "coordinator/tokenizer/unicode.h"

namespace somnus {
namespace {

constexpr size_t kMaxCachedBytes = 64;  // longer pieces are rare; one request could fill the cache with them
constexpr size_t kMaxWordsPerShard = 2048;  // 16 shards: about 4 MB at most (an estimate)
constexpr size_t kShortWord = 48;           // up to this length repeated scans are faster than a heap
constexpr size_t kMergesAhead = 16;
constexpr uint32_t kNoMerge = std::numeric_limits<uint32_t>::max();

uint64_t PairKey(int32_t left, int32_t right) {
  return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) | static_cast<uint32_t>(right);
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
  RETURN_IF_ERROR(bpe->AddMerges(data));
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

int32_t Bpe::Lookup(absl::string_view token) const {
  const auto it = vocab_.find(token);
  return it == vocab_.end() ? -1 : it->second;
}

const Bpe::Merge* Bpe::FindMerge(int32_t left, int32_t right) const {
  const auto it = merges_.find(PairKey(left, right));
  return it == merges_.end() ? nullptr : &it->second;
}

void Bpe::Encode(absl::string_view piece, std::vector<int32_t>* ids) const {
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
    int32_t id;  // -1: merged away
    int32_t previous, next;
  };
  struct Candidate {
    uint32_t rank;
    int32_t position, id;
    bool operator>(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : position > other.position;
    }
  };
  const auto count = static_cast<int32_t>(symbols->size());
  std::vector<Node> nodes(symbols->size());
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  for (int32_t i = 0; i < count; ++i) nodes[i] = {(*symbols)[i], i - 1, i + 1 < count ? i + 1 : -1};
  const auto offer = [&](int32_t left) {
    if (left < 0 || nodes[left].next < 0) return;
    const Merge* merge = FindMerge(nodes[left].id, nodes[nodes[left].next].id);
    if (merge != nullptr) queue.push({merge->rank, left, merge->id});
  };
  for (int32_t i = 0; i + 1 < count; ++i) offer(i);
  while (!queue.empty()) {
    const Candidate top = queue.top();
    queue.pop();
    Node& left = nodes[top.position];
    if (left.id < 0 || left.next < 0) continue;
    // An entry is stale when its pair has changed since it was pushed.
    const Merge* merge = FindMerge(left.id, nodes[left.next].id);
    if (merge == nullptr || merge->id != top.id) continue;
    Node& right = nodes[left.next];
    left.id = top.id;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) nodes[left.next].previous = top.position;
    offer(left.previous);
    offer(top.position);
  }
  symbols->clear();
  for (int32_t i = 0; i >= 0 && count > 0; i = nodes[i].next) symbols->push_back(nodes[i].id);
}

}  // namespace somnus
