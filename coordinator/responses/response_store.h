#pragma once
// Keeps the responses of /v1/responses for later requests: the bodies for GET, and the conversations that go
// on with previous_response_id. Bounded in responses and in bytes: the response that was unused for longest
// goes first. Nothing is kept over the end of the process. Thread safe.

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

namespace somnus {

// The turns of a conversation, oldest first: the messages of each turn (AppendMessages of input_items.h).
// Conversations share the turns that the conversations have in common.
using Conversation = std::vector<std::shared_ptr<const std::string>>;

struct StoredResponse {
  bool has_ended = false;
  std::shared_ptr<const std::string> body;   // JSON
  std::optional<Conversation> conversation;  // with the response's own turn; nullopt: no request can go on
};

class ResponseStore {
 public:
  // Nothing is kept where `max_responses` is 0.
  ResponseStore(int64_t max_responses, int64_t max_bytes);
  ResponseStore(const ResponseStore&) = delete;
  ResponseStore& operator=(const ResponseStore&) = delete;

  bool keeps_any() const { return max_responses_ > 0; }
  // Bytes of all bodies and turns, also of turns that a request still uses.
  int64_t bytes() const { return *bytes_; }

  // Keeps a response that is under way.
  void Begin(const std::string& id, std::string body);
  // The response has ended. `before`: the conversation without the response's `turn`. Does nothing where the
  // response is not kept any more; a response that exceeds the bound alone is dropped.
  void End(const std::string& id, std::string body, Conversation before, std::string turn);
  // As End, for a response that was cancelled or has failed: no request can go on.
  void EndWithoutTurn(const std::string& id, std::string body);
  // Counts as a use.
  std::optional<StoredResponse> Find(absl::string_view id);
  // False: no such response.
  bool Remove(absl::string_view id);

 private:
  struct Entry {
    std::string id;
    StoredResponse response;
  };
  using Entries = std::list<Entry>;

  // The text, whose bytes count as long as the text lives. `more_bytes`: count besides.
  std::shared_ptr<const std::string> Counted(std::string text, size_t more_bytes = 0) const;
  void Replace(const std::string& id, std::string body, std::optional<Conversation> conversation);
  void Erase(Entries::iterator entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Drops entries from the back until the bounds hold.
  void Trim() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int64_t max_responses_, max_bytes_;
  // Shared with every text, which may live longer than the store.
  const std::shared_ptr<std::atomic<int64_t>> bytes_ = std::make_shared<std::atomic<int64_t>>(0);
  mutable absl::Mutex mutex_;
  Entries entries_ ABSL_GUARDED_BY(mutex_);  // the last used first
  absl::flat_hash_map<std::string, Entries::iterator> by_id_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace somnus
