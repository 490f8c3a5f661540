#pragma once
// SHA-256 of bytes that come in parts, or of a list of numbers and texts. Not thread safe.

#include <openssl/evp.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/string_view.h"
#include "base/check.h"

namespace somnus {

class Sha256 {
 public:
  Sha256() : context_(EVP_MD_CTX_new()) {
    SOMNUS_CHECK(context_ != nullptr && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1);
  }
  void AddBytes(absl::string_view bytes) {
    SOMNUS_CHECK(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1);
  }
  // A field of a list. Lengths go before texts, so that no two lists of fields make the same bytes.
  void Add(uint64_t number) { AddBytes({reinterpret_cast<const char*>(&number), sizeof(number)}); }
  void Add(absl::string_view text) {
    Add(uint64_t{text.size()});
    AddBytes(text);
  }
  // The digest, once.
  std::string Hex() {
    std::string digest(32, '\0');
    SOMNUS_CHECK(
        EVP_DigestFinal_ex(context_.get(), reinterpret_cast<unsigned char*>(digest.data()), nullptr) == 1);
    return absl::BytesToHexString(digest);
  }

 private:
  struct Free {
    void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
  };
  std::unique_ptr<EVP_MD_CTX, Free> context_;
};

}  // namespace somnus
