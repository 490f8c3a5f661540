#include "coordinator/responses/response_store.h"

#include <iterator>
#include <utility>

namespace somnus {
namespace {

// An estimate of the memory of a text beside the characters, with the text's places in lists and maps.
constexpr int64_t kTextBytes = 256;

}  // namespace

ResponseStore::ResponseStore(int64_t max_responses, int64_t max_bytes)
    : max_responses_(max_responses), max_bytes_(max_bytes) {}

std::shared_ptr<const std::string> ResponseStore::Counted(std::string text, size_t more_bytes) const {
  const int64_t size = static_cast<int64_t>(text.size() + more_bytes) + kTextBytes;
  *bytes_ += size;
  const auto give_back = [bytes = bytes_, size](const std::string* counted) {
    delete counted;
    *bytes -= size;
  };
  return {new std::string(std::move(text)), give_back};
}

void ResponseStore::Erase(Entries::iterator entry) {
  by_id_.erase(entry->id);
  entries_.erase(entry);
}

void ResponseStore::Trim() {
  while (!entries_.empty() &&
         (static_cast<int64_t>(entries_.size()) > max_responses_ || *bytes_ > max_bytes_))
    Erase(std::prev(entries_.end()));
}

void ResponseStore::Begin(const std::string& id, std::string body) {
  if (!keeps_any()) return;
  std::shared_ptr<const std::string> counted = Counted(std::move(body));
  absl::MutexLock lock(&mutex_);
  if (const auto old = by_id_.find(id); old != by_id_.end()) Erase(old->second);
  entries_.push_front({id, {.body = std::move(counted)}});
  by_id_.emplace(id, entries_.begin());
  Trim();
}

void ResponseStore::Replace(const std::string& id, std::string body,
                            std::optional<Conversation> conversation) {
  const size_t list_bytes =
      conversation.has_value() ? conversation->size() * sizeof(conversation->front()) : 0;
  std::shared_ptr<const std::string> counted = Counted(std::move(body), list_bytes);
  absl::MutexLock lock(&mutex_);
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return;
  const Entries::iterator entry = found->second;
  entry->response = {.has_ended = true, .body = std::move(counted), .conversation = std::move(conversation)};
  entries_.splice(entries_.begin(), entries_, entry);
  Trim();
}

void ResponseStore::End(const std::string& id, std::string body, Conversation before, std::string turn) {
  if (static_cast<int64_t>(body.size() + turn.size()) > max_bytes_) {
    Remove(id);
    return;
  }
  before.push_back(Counted(std::move(turn)));
  Replace(id, std::move(body), std::move(before));
}

void ResponseStore::EndWithoutTurn(const std::string& id, std::string body) {
  if (static_cast<int64_t>(body.size()) > max_bytes_) {
    Remove(id);
    return;
  }
  Replace(id, std::move(body), std::nullopt);
}

std::optional<StoredResponse> ResponseStore::Find(absl::string_view id) {
  absl::MutexLock lock(&mutex_);
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return std::nullopt;
  entries_.splice(entries_.begin(), entries_, found->second);
  return found->second->response;
}

bool ResponseStore::Remove(absl::string_view id) {
  absl::MutexLock lock(&mutex_);
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return false;
  Erase(found->second);
  return true;
}

}  // namespace somnus
