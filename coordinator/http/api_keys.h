#pragma once
// The keys that open a listener, each perhaps with a name. A name may be shown in answers and logs; a key
// never is. A value; const methods are thread safe.

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace somnus {

class ApiKeys {
 public:
  static constexpr size_t kMaxKeys = 1024;

  ApiKeys() = default;
  // One key without a name; `key` is not empty.
  explicit ApiKeys(std::string key) : keys_{{"", std::move(key)}} {}

  // `name`: empty for a key without a name. InvalidArgument: the key is empty, the name is taken, or there
  // are kMaxKeys keys already; the message goes on behind the words for the key.
  absl::Status Add(absl::string_view name, absl::string_view key);
  // Adds the keys of a file: lines "name:key"; empty lines, and lines that begin with '#', do not count.
  // InvalidArgument names the path and the line, never a key; also where users other than the file's owner
  // and group can read the file.
  absl::Status AddFile(const std::string& path);

  // No key is required.
  bool empty() const { return keys_.empty(); }

  // Whether `authorization` is "Bearer KEY" of one of the keys; true where no key is required. The time
  // depends on the length of `authorization` and on the number of keys alone.
  bool Opens(absl::string_view authorization) const;
  // Returns the name of the key that `authorization` shows; empty: none of the keys, or a key without a name.
  std::string NameOf(absl::string_view authorization) const;

 private:
  struct Key {
    std::string name, key;
  };
  // Null: none of the keys.
  const Key* Find(absl::string_view authorization) const;

  std::vector<Key> keys_;
};

}  // namespace somnus
