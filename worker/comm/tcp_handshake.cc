#include "worker/comm/tcp_handshake.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/check.h"

namespace somnus {
namespace {

template <typename T>
absl::string_view BytesOf(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

}  // namespace

TcpSecret::TcpSecret(std::string group_name, std::string secret)
    : group_name_(std::move(group_name)), secret_(std::move(secret)) {}

Nonce TcpSecret::NewNonce() {
  Nonce nonce;
  SOMNUS_CHECK(RAND_bytes(nonce.data(), static_cast<int>(nonce.size())) == 1);
  return nonce;
}

Mac TcpSecret::ChallengeMac(const TcpHello& hello, const Nonce& nonce) const {
  return Sign('c', hello, nonce);
}

Mac TcpSecret::ProofMac(const TcpHello& hello, const Nonce& nonce) const { return Sign('p', hello, nonce); }

bool TcpSecret::Same(const Mac& a, const Mac& b) { return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0; }

Mac TcpSecret::Sign(char role, const TcpHello& hello, const Nonce& nonce) const {
  // The name stands last, because the name alone has no fixed size.
  const std::string text =
      absl::StrCat(absl::string_view(&role, 1), BytesOf(hello), BytesOf(nonce), group_name_);
  Mac mac;
  SOMNUS_CHECK(HMAC(EVP_sha256(), secret_.data(), static_cast<int>(secret_.size()),
                    reinterpret_cast<const unsigned char*>(text.data()), text.size(), mac.data(),
                    nullptr) != nullptr);
  return mac;
}

}  // namespace somnus
