#pragma once
// How two ranks of a group on several hosts prove to each other to hold the group's secret.
//
// The rank that connects sends a Hello; the other rank replies with a Challenge, and gets a Proof. Challenge
// and Proof are each a MAC over everything that was said, so that neither can be made without the secret,
// used again, or used for a second connection. All messages have a fixed size; numbers are little-endian, as
// all our machines are.

#include <array>
#include <cstdint>
#include <string>

namespace somnus {

constexpr uint64_t kTcpMagic = 0x31504354'534e4d53;  // changes with messages, also of links

using Nonce = std::array<unsigned char, 16>;
using Mac = std::array<unsigned char, 32>;

enum class TcpChannel : int32_t { kData = 0, kNotices = 1 };
constexpr int kTcpChannels = 2;

struct TcpHello {
  uint64_t magic = kTcpMagic;
  int32_t from = 0, to = 0;  // ranks
  int32_t world_size = 0;
  int32_t channel = 0;
  Nonce nonce = {};
};
struct TcpChallenge {
  Nonce nonce = {};
  Mac mac = {};
};
struct TcpProof {
  Mac mac = {};
};
static_assert(sizeof(TcpHello) == 40 && sizeof(TcpChallenge) == 48 && sizeof(TcpProof) == 32);

// Makes and checks the MACs of a group. Thread safe.
class TcpSecret {
 public:
  TcpSecret(std::string group_name, std::string secret);

  static Nonce NewNonce();
  // The MACs of the rank that was connected to, and of the rank that connected.
  Mac ChallengeMac(const TcpHello& hello, const Nonce& nonce) const;
  Mac ProofMac(const TcpHello& hello, const Nonce& nonce) const;
  // Takes the same time wherever the MACs differ.
  static bool Same(const Mac& a, const Mac& b);

 private:
  Mac Sign(char role, const TcpHello& hello, const Nonce& nonce) const;

  const std::string group_name_, secret_;
};

}  // namespace somnus
