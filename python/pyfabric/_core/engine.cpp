#include "engine.hpp"

#include <unistd.h>

#include <algorithm>
#include <stdexcept>

#include "clock.hpp"
#include "errors.hpp"
#include "fabric.hpp"
#include "local_writers.hpp"
#include "mapped.hpp"

namespace pyfabric {
namespace {

constexpr size_t kScratchBytes = 4096;
constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kCloseNs = 5 * kSecond;   // the loop drains for at most 1 s; beyond this it hangs in the provider
constexpr int64_t kHungCloseNs = kSecond / 5;  // known to hang
constexpr int64_t kGateNs = kSecond;  // writes of this process to an endpoint that closes come back within microseconds
// What revoke() and forget() wait for the worker at most.
constexpr int64_t kRevokeNs = 5 * kSecond;

const EngineOptions& checked(const EngineOptions& options) {
  if (!(options.post_deadline_s > 0 && options.post_deadline_s < 1e6)) throw std::invalid_argument("post_deadline_s must be positive seconds");
  return options;
}

Rails open_rails(const EngineOptions& options) {
  if (options.provider == "mapped") {
    if (!options.domains.empty()) throw std::invalid_argument("domains: provider mapped has none");
    return {std::make_shared<MappedRail>()};
  }
  if (options.domains.size() > kMostRails) throw std::invalid_argument("domains: at most " + std::to_string(kMostRails));
  if (options.domains.empty()) return {std::make_shared<Fabric>(options.provider, options.node, "")};
  Rails rails;
  for (const std::string& domain : options.domains) {
    // All of one kind: a peer's keys and addresses mean the same on each.
    const std::string provider = rails.empty() ? options.provider : rails[0]->provider();
    rails.push_back(std::make_shared<Fabric>(provider, domain, domain));
  }
  return rails;
}

Limits common_limits(const Rails& rails, const Slots& slots) {
  Limits common{slots.addressable(), slots.max_weight(), UINT64_MAX, UINT64_MAX, UINT64_MAX};
  for (const auto& rail : rails) {
    const RailLimits limits = rail->limits();
    common.max_write_bytes = std::min(common.max_write_bytes, limits.max_write_bytes);
    common.write_extents = std::min(common.write_extents, limits.extents);
    common.inject_bytes = std::min(common.inject_bytes, limits.inject_bytes);
  }
  return common;
}

}  // namespace

Engine::Engine(const EngineOptions& options)
    : slots_(std::make_shared<Slots>(options.slots, options.weight_bits)), options_(checked(options)), rails_(open_rails(options)) {
  provider_ = rails_[0]->provider();
  virtual_addresses_ = rails_[0]->virtual_addresses();
  limits_ = common_limits(rails_, *slots_);
  const File scratch = make_shared_file("pyfabric-scratch", kScratchBytes);
  if (!scratch_bytes_.open(scratch.fd(), true)) throw FabricFailure(ENOMEM, "mapping scratch memory");
  scratch_ = std::make_shared<Region>(rails_, reinterpret_cast<uint64_t>(scratch_bytes_.base()), kScratchBytes, Backing{scratch.fd(), 0});
  const Grant grant = scratch_->grant("any", std::nullopt);
  Address address{provider_, {}, virtual_addresses_, uint32_t(getpid()), this_host(), grant.base};
  for (size_t i = 0; i < rails_.size(); ++i) {
    domains_.push_back(rails_[i]->domain());
    address.rails.push_back({rails_[i]->endpoint(), grant.keys[i]});
  }
  address_ = address.encode();
  const WorkerOptions worker{int64_t(options.post_deadline_s * double(kSecond)), options.spin};
  worker_ = std::make_shared<Worker>(rails_, waker_, events_, slots_, scratch_, limits_, worker);
}

Engine::~Engine() {
  try {
    close();
  } catch (const std::exception&) {
    // close() has already left the hanging thread its own references; a destructor has nobody to tell.
  }
}

void Engine::require_open(const char* call) const {
  if (closed_) throw std::invalid_argument(std::string(call) + ": the engine is closed");
}

const Engine::Known& Engine::require_peer(int64_t peer) const {
  const auto found = peers_.find(peer);
  if (found == peers_.end()) throw std::invalid_argument("peer " + std::to_string(peer) + " is not connected");
  return found->second;
}

void Engine::start(const std::vector<int>& cpus) {
  const std::lock_guard lock(mutex_);
  require_open("start");
  if (started_) return;
  started_ = true;
  worker_->set_cpus(cpus);
  Worker::start(worker_);
  if (provider_ == "shm") LocalWriters::serve(rails_[0]->endpoint(), worker_);
  watchdog_ = std::make_unique<Watchdog>(worker_, int64_t(options_.post_deadline_s * double(kSecond)), [this] { worker_hangs(); });
}

// The watchdog's thread: the worker has not come around for longer than any deadline.
void Engine::worker_hangs() {
  std::vector<int64_t> peers;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, known] : peers_) peers.push_back(id);
  }
  events_->seal(peers, "the worker hangs inside provider " + provider_);
}

void Engine::close() {
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    closed_ = true;
  }
  watchdog_.reset();
  if (started_ && !events_->sealed())
    for (const auto& rail : rails_) LocalWriters::shut(rail->endpoint(), kGateNs);
  if (!worker_->stop(events_->sealed() ? kHungCloseNs : kCloseNs)) {
    worker_hangs();
    // The thread keeps its references; the memory that the provider may still touch is leaked on purpose.
    new SharedMapping(std::move(scratch_bytes_));
    throw FabricFailure(FI_ETIMEDOUT, "close: the worker hangs inside provider " + provider_ + " and was left behind");
  }
  for (const auto& rail : rails_) {
    const bool taken = !started_ || LocalWriters::taken(rail->endpoint(), kGateNs);
    if (LocalWriters::forget(rail->endpoint()) && taken) rail->close_endpoint();
    else new std::shared_ptr<Rail>(rail);  // leaked on purpose, as above
  }
  worker_->fail_leftovers();
  for (auto& weak : regions_)
    if (auto region = weak.lock()) region->close_by_engine();
  scratch_->close_by_engine();
  worker_->release_rails();
  rails_.clear();
}

std::shared_ptr<Region> Engine::register_memory(uint64_t address, uint64_t nbytes, const Backing& backing) {
  const std::lock_guard lock(mutex_);
  require_open("register");
  auto region = std::make_shared<Region>(rails_, address, nbytes, backing);
  std::erase_if(regions_, [](const auto& weak) { return weak.expired(); });
  regions_.push_back(region);
  return region;
}

bool Engine::revoke(Region& region, const std::string& peer) {
  std::optional<Address> writer;
  if (!region.revoke(peer, writer)) return false;
  Rails rails;
  {
    const std::lock_guard lock(mutex_);
    if (!started_ || closed_) return true;
    rails = rails_;
  }
  // A write that was half received goes on landing until its connection ends; and the worker may have looked the key up
  // just before. The fence holds once the sockets are empty and the worker has come around.
  std::vector<CutSocket> cut;
  for (const auto& rail : rails)
    for (const CutSocket& socket : rail->cut_incoming(writer ? &*writer : nullptr)) cut.push_back(socket);
  Patience patience(kRevokeNs);
  do {
    if (patience.over() || !worker_->pass_by(kRevokeNs))
      throw FabricFailure(FI_ETIMEDOUT, "revoke: the worker hangs inside provider " + provider_);
  } while (!drained(cut));
  return true;
}

uint64_t Engine::forget(uint64_t slot) {
  bool running = false;
  {
    const std::lock_guard lock(mutex_);
    running = started_ && !closed_;
  }
  // The sender may know that a write is delivered while its immediate still waits in our queue: credited after this, it
  // would count for the slot's next use.
  if (running && slots_->incomplete(slot) && !worker_->credit_all(kRevokeNs))
    throw FabricFailure(FI_ETIMEDOUT, "forget: the worker hangs inside provider " + provider_);
  const uint64_t received = slots_->forget(slot);
  events_->withdraw(slot);
  return received;
}

int64_t Engine::connect(const std::string& blob) {
  Address target = Address::decode(blob);
  if (target.provider != provider_)
    throw std::invalid_argument("connect: the peer speaks provider " + target.provider + ", this engine " + provider_);
  if (provider_ == "mapped" && target.host != this_host())
    throw std::invalid_argument("connect: provider mapped reaches engines of this machine only");
  const std::lock_guard lock(mutex_);
  require_open("connect");
  std::shared_ptr<Gate> gate;
  if (provider_ == "shm" && target.pid == uint32_t(getpid()) && target.host == this_host())
    gate = LocalWriters::claim(rails_[0]->endpoint(), target.rails[0].endpoint);
  const int64_t peer = next_peer_++;
  const Known known{target.rails.size(), std::make_shared<PeerTallies>()};
  peers_.emplace(peer, known);
  worker_->add_peer(peer, std::move(target), known.tallies, std::move(gate));
  return peer;
}

void Engine::warm(int64_t peer) {
  const std::lock_guard lock(mutex_);
  require_open("warm");
  require_peer(peer);
  worker_->warm(peer);
}

void Engine::disconnect(int64_t peer) {
  const std::lock_guard lock(mutex_);
  require_open("disconnect");
  require_peer(peer);
  peers_.erase(peer);
  worker_->disconnect(peer);
}

void Engine::require_alive(const char* call) const {
  if (events_->sealed()) throw FabricFailure(FI_ETIMEDOUT, std::string(call) + ": the worker hangs inside provider " + provider_);
}

void Engine::guard(const Lane& lane) const {
  const LaneSpec& spec = lane.spec;
  const size_t rails = require_peer(spec.peer).rails;
  if (spec.destination.keys.size() != rails)
    throw std::invalid_argument("destination has " + std::to_string(spec.destination.keys.size()) + " keys, its peer " +
                                std::to_string(rails) + " domains: the grant is another engine's");
  if (spec.source->closed()) throw std::invalid_argument("arm: a source region is closed");
  if (!spec.source->readable())
    throw std::invalid_argument("source: provider " + provider_ + " reads it through its memfd: register it with fd");
}

uint64_t Engine::arm(std::unique_ptr<Program> program) {
  validate(*program, limits_);
  const std::lock_guard lock(mutex_);
  require_open("arm");
  require_alive("arm");
  for (const Lane& lane : program->lanes) guard(lane);
  const uint64_t handle = program->handle = next_handle_++;
  events_->armed(handle);
  worker_->arm(std::move(program));
  return handle;
}

void Engine::cancel(uint64_t handle) {
  const std::lock_guard lock(mutex_);
  require_open("cancel");
  if (handle == 0 || handle >= next_handle_) throw std::invalid_argument("cancel: no program has handle " + std::to_string(handle));
  worker_->cancel(handle);
}

std::map<std::string, uint64_t> Engine::stats() const {
  const Tallies& t = worker_->tallies;
  const Credits c = slots_->credits();
  return {{"writes_posted", t.writes_posted}, {"pages_posted", t.pages_posted}, {"bytes_posted", t.bytes_posted},
          {"completions", t.completions},     {"errors", t.errors},             {"immediates", c.immediates},
          {"strays", c.strays},               {"excess", c.excess},             {"eagain", t.eagain},
          {"eagain_ns", t.eagain_ns},         {"in_flight", t.in_flight},       {"armed", t.armed},
          {"peers_lost", t.peers_lost},       {"abandoned", t.abandoned},       {"sleeps", t.sleeps}};
}

std::map<std::string, uint64_t> Engine::peer_stats(int64_t peer) const {
  const std::lock_guard lock(mutex_);
  const PeerTallies& t = *require_peer(peer).tallies;
  return {{"writes_posted", t.writes_posted}, {"pages_posted", t.pages_posted}, {"bytes_posted", t.bytes_posted}, {"errors", t.errors},
          {"eagain", t.eagain},               {"eagain_ns", t.eagain_ns},       {"in_flight", t.in_flight},       {"lost", t.lost}};
}

}  // namespace pyfabric
