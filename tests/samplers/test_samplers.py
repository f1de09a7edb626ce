"""TransformersSampler: log-probabilities, truncation, seeds, ends of responses and weights."""

from __future__ import annotations

import math
from array import array
from operator import attrgetter

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    DynamicCache,
    FalconConfig,
    FalconForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.integrations import sdpa_attention

from rlobj.base.errors import ConfigError, RunError
from rlobj.samplers import SamplingSettings, Sent, TransformersSampler
from rlobj.samplers.attention import RoomyLayer, give_room
from rlobj.samplers.syncing import compare
from rlobj.samplers.transformers import draw, truncate
from rlobj.samplers.types import Feed, Request

CHARACTERS = ["<pad>", "<eos>", *"abcdefghij0123456789"]
EOS = 1
PROMPTS = [[2, 3], [4, 5, 6, 7, 8, 9, 10], [11], [12, 13, 14], [5, 6, 7]]


@pytest.fixture(scope="module")
def tokenizer():
    vocabulary = {character: index for index, character in enumerate(CHARACTERS)}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", eos_token="<eos>")


COMMON = {
    "vocab_size": len(CHARACTERS),
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
}
WINDOW = {
    "use_sliding_window": True,
    "sliding_window": 4,
    "layer_types": ["sliding_attention", "full_attention"],
}
FALCON = {"new_decoder_architecture": True, "num_kv_heads": 1}
GPT2 = {"n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 2, "bos_token_id": None}
MAMBA = {"hidden_size": 32, "state_size": 4, "num_hidden_layers": 2}
OTHERS = {"vocab_size": len(CHARACTERS), "tie_word_embeddings": False}
KINDS = {
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**COMMON, head_dim=16)),
    "sliding": lambda: Qwen3ForCausalLM(Qwen3Config(**COMMON, **WINDOW, head_dim=16)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**COMMON)),
    "falcon": lambda: FalconForCausalLM(FalconConfig(**COMMON | FALCON)),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(**OTHERS, **GPT2, eos_token_id=None)),
    "mamba": lambda: MambaForCausalLM(MambaConfig(**OTHERS, **MAMBA)),
}


def tiny(kind: str):
    """A random model with a few thousand parameters and a clearly non-uniform next token."""
    torch.manual_seed(1)
    model = KINDS[kind]()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.3)  # large enough that every context token matters
    return model


@pytest.fixture(scope="module", params=KINDS)
def any_model(request):
    return tiny(request.param)


@pytest.fixture(params=["small", "large"])
def any_cache(request):
    """Caches are treated as small ones or as large ones."""
    if request.param == "large":
        request.getfixturevalue("large")


@pytest.fixture
def sampler(tokenizer):
    return TransformersSampler(tiny("qwen3"), tokenizer)


def forced_logits(model, sample):
    """Logits of each response token from one forward pass over the unpadded sequence."""
    modes = model.training
    model.eval()
    with torch.no_grad():
        ids = torch.tensor([[*sample.prompt, *sample.tokens]])
        logits = model(input_ids=ids).logits[0, len(sample.prompt) - 1 : -1]
    model.train(modes)
    return logits


def gathered(scores, sample):
    chosen = torch.tensor(sample.tokens)[:, None]
    return scores.log_softmax(-1).gather(-1, chosen)[:, 0]


def seeds(seed):
    """One seed for each of PROMPTS."""
    return [100 * seed + index for index in range(len(PROMPTS))]


def drawn(sampler, count, seed=0, **settings):
    """Responses to each of PROMPTS, of 6 tokens at most."""
    asked = SamplingSettings(**{"max_tokens": 6, **settings})
    return sampler.sample(PROMPTS, count=count, settings=asked, seeds=seeds(seed))


def flat(samples):
    return [sample for group in samples for sample in group]


def tokens(samples):
    return [sample.tokens.tolist() for sample in flat(samples)]


def test_logprobs_equal_a_forward_pass_at_the_sampling_temperature(any_model, any_cache, tokenizer):
    sampler = TransformersSampler(any_model, tokenizer)
    samples = flat(drawn(sampler, 16, seed=3, temperature=0.7, max_tokens=9))
    assert len({len(sample.tokens) for sample in samples}) > 1, "no row left the batch early"
    for sample in samples:
        expected = gathered(forced_logits(any_model, sample) / 0.7, sample)
        torch.testing.assert_close(torch.tensor(sample.logprobs), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("change", [{"top_p": 0.6}, {"top_k": 3}, {"min_p": 0.3}])
def test_logprobs_are_renormalised_after_truncation(sampler, change):
    settings = SamplingSettings(temperature=1.3, max_tokens=6, **change)
    moved = 0.0
    for sample in flat(drawn(sampler, 4, temperature=1.3, **change)):
        logits = forced_logits(sampler.model, sample)
        got = torch.tensor(sample.logprobs)
        expected = gathered(truncate(logits, settings), sample)
        torch.testing.assert_close(got, expected, atol=1e-5, rtol=0)
        moved = max(moved, (got - gathered(logits / 1.3, sample)).max().item())
    assert moved > 0.05, "the truncation did nothing, so the test shows nothing"


def test_truncation_keeps_the_tokens_computed_by_hand():
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()

    def kept(**settings):
        scores = truncate(logits, SamplingSettings(max_tokens=1, **settings))
        return scores.softmax(-1)[0]

    torch.testing.assert_close(kept(top_k=2), torch.tensor([0.625, 0.375, 0, 0]))
    torch.testing.assert_close(kept(top_p=0.7), torch.tensor([0.625, 0.375, 0, 0]))
    torch.testing.assert_close(kept(top_p=0.4), torch.tensor([1.0, 0, 0, 0]))
    torch.testing.assert_close(kept(min_p=0.2), torch.tensor([0.5, 0.3, 0.15, 0]) / 0.95)
    # top-p looks at the renormalised 0.625, 0.375 after top-k: the first token reaches 0.6.
    torch.testing.assert_close(kept(top_k=2, top_p=0.6), torch.tensor([1.0, 0, 0, 0]))
    squares = torch.tensor([0.25, 0.09, 0.0225, 0.0025])
    torch.testing.assert_close(kept(temperature=0.5), squares / squares.sum())


def test_drawn_frequencies_match_the_probabilities():
    probs = torch.tensor([0.0, 0.5, 0.0, 0.3, 0.15, 0.05, 0.0])
    count = 20000
    uniform = torch.rand(count, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    tokens, logprobs = draw(
        probs.log().expand(count, -1), 1 - uniform, SamplingSettings(max_tokens=1)
    )
    frequencies = tokens.bincount(minlength=7) / count
    assert (frequencies[probs == 0] == 0).all()
    torch.testing.assert_close(frequencies, probs, atol=0.012, rtol=0)  # > 3 standard errors
    torch.testing.assert_close(logprobs, probs.log()[tokens])


def test_smallest_and_largest_uniform_never_draw_a_token_of_probability_zero():
    logits = torch.tensor([[-math.inf, 0.0, 0.0, -math.inf]]).expand(2, -1)
    ends = torch.tensor([2.0**-53, 1.0], dtype=torch.float64)
    tokens, logprobs = draw(logits, ends, SamplingSettings(max_tokens=1))
    assert tokens.tolist() == [1, 2]
    assert torch.isfinite(logprobs).all()


def test_draws_do_not_depend_on_the_block_size(monkeypatch):
    logits = torch.randn(10, 8, generator=torch.Generator().manual_seed(0))
    uniform = 1 - torch.rand(10, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    settings = SamplingSettings(max_tokens=1, top_p=0.9)
    whole = draw(logits, uniform, settings)
    monkeypatch.setattr("rlobj.samplers.transformers._CPU_BLOCK", 24)
    in_blocks = draw(logits, uniform, settings)
    assert torch.equal(whole[0], in_blocks[0])
    torch.testing.assert_close(whole[1], in_blocks[1])


def test_samples_depend_on_the_seed_and_neither_read_nor_change_the_global_random_state(sampler):
    torch.manual_seed(1)
    first = drawn(sampler, 8, seed=7)
    assert len({tuple(sample.tokens) for sample in first[0]}) > 4
    torch.manual_seed(2)
    before = torch.get_rng_state()
    assert drawn(sampler, 8, seed=7) == first
    assert torch.equal(torch.get_rng_state(), before)
    assert drawn(sampler, 8, seed=8) != first


def test_a_response_depends_only_on_its_prompt_and_seed(sampler):
    settings, order = SamplingSettings(max_tokens=6), [3, 0, 4]
    together = drawn(sampler, 3, seed=7)
    others = sampler.sample(
        [PROMPTS[i] for i in order], count=3, settings=settings, seeds=[seeds(7)[i] for i in order]
    )
    assert tokens(others) == tokens([together[index] for index in order])


def test_a_prompt_that_is_given_several_times_is_computed_once(sampler):
    drawn(sampler, 1)  # the trial of the model is over
    rows = []
    sampler.model.register_forward_pre_hook(
        lambda module, inputs, arguments: rows.append(len(arguments["input_ids"])), with_kwargs=True
    )
    settings = SamplingSettings(max_tokens=3)
    together = sampler.sample([*PROMPTS, *PROMPTS], count=1, settings=settings, seeds=range(10))
    assert rows[0] == len(PROMPTS)
    alone = [
        sampler.sample([prompt], count=1, settings=settings, seeds=[seed])
        for seed, prompt in enumerate([*PROMPTS, *PROMPTS])
    ]
    assert tokens(together) == [tokens(groups)[0] for groups in alone]


def test_the_token_budget_does_not_change_the_samples(sampler, tokenizer):
    narrow = TransformersSampler(sampler.model, tokenizer, batch_tokens=25)
    wide, few = (flat(drawn(each, 3, seed=2)) for each in (sampler, narrow))
    for one, other in zip(wide, few, strict=True):
        assert one.tokens == other.tokens
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)


def test_responses_that_end_together_come_in_the_order_of_their_places(sampler):
    requests = [Request((i,), i, array("i", PROMPTS[i % 5]), i, 6) for i in range(40)]
    ended = []

    def done(request, response):
        ended.append((len(response.tokens), request.key))

    sampler.stream(Feed.whole(requests), SamplingSettings(max_tokens=6), done)
    lengths = [length for length, _ in ended]
    assert len(set(lengths)) > 2, "no row left the batch early"
    assert ended == sorted(ended)


@pytest.fixture
def large(monkeypatch):
    """Every cache is large."""
    monkeypatch.setattr("rlobj.samplers.attention.LARGE", 0)


def cached(rows, length):
    """A cache of one layer with random keys and values, and the same with room for 40 tokens."""
    states = torch.randn(2, rows, 2, length, 4)
    plain, roomy = DynamicCache(), DynamicCache()
    for cache in (plain, roomy):
        cache.update(states[0].clone(), states[1].clone(), 0)
    give_room(roomy, 40)
    assert type(roomy.layers[0]) is RoomyLayer
    return plain, roomy


def grown(plain, roomy):
    """Add a token to both, which have to stay equal; the address of the keys with room."""
    states = torch.randn(2, len(plain.layers[0].keys), 2, 1, 4)
    expected, got = (cache.update(*states, 0) for cache in (plain, roomy))
    assert all(map(torch.equal, got, expected))
    assert roomy.get_seq_length() == plain.get_seq_length()
    return got[0].data_ptr()


def test_a_cache_moves_only_when_its_room_doubles(large):
    plain, roomy = cached(rows=3, length=5)
    places = {grown(plain, roomy) for _ in range(35)}
    assert len(places) == 3, "12, 26 and 40 tokens"


def test_rows_that_leave_make_place_for_the_last_ones_in_place(large):
    plain, roomy = cached(rows=6, length=5)
    before = grown(plain, roomy)
    for order in ([0, 5, 2, 4], [0, 3], [0, 1]):
        for cache in (plain, roomy):
            cache.reorder_cache(torch.tensor(order))
        assert grown(plain, roomy) == before


def test_keys_are_not_copied_for_each_query_head_when_a_token_is_drawn(tokenizer, monkeypatch):
    usual, copied = sdpa_attention.repeat_kv, []

    def noting(states, count):
        copied.append(states.shape[2])
        return usual(states, count)

    monkeypatch.setattr(sdpa_attention, "repeat_kv", noting)
    model = tiny("llama")
    drawn(TransformersSampler(model, tokenizer), 4)
    longest = max(map(len, PROMPTS))
    assert set(copied) == {longest - 1, longest}, (
        "something else than the prompts, two in the trial"
    )
    if hasattr(sdpa_attention, "pack_gqa"):  # transformers copies them nowhere for a single query
        return
    copied.clear()
    ids = torch.tensor([[2, 3, 4]])
    cache = model(ids).past_key_values
    model(ids[:, :1], past_key_values=cache, attention_mask=torch.tensor([[0, 1, 1, 1]]))
    assert 4 in copied, "sampling has changed attention elsewhere"


def test_newer_names_of_the_cache_are_used_alone(tokenizer, monkeypatch):
    """transformers 5.20 and later call it `cache`, and warn where anybody asks for the old name."""

    class Output(dict):
        def __contains__(self, name):
            return self.get(name) is not None

        def get(self, name, default=None):
            assert name == "cache"
            return super().get(name, default)

    model = tiny("llama")
    expected, usual = drawn(TransformersSampler(model, tokenizer), 4), model.forward

    def forward(input_ids, cache=None, use_cache=None, attention_mask=None, position_ids=None):
        output = usual(
            input_ids,
            past_key_values=cache,
            use_cache=use_cache,
            attention_mask=attention_mask,
            position_ids=position_ids,
        )
        renamed = Output(cache=output.past_key_values)
        renamed.logits = output.logits
        return renamed

    monkeypatch.setattr(model, "forward", forward)
    assert drawn(TransformersSampler(model, tokenizer), 4) == expected


def test_greedy_takes_the_argmax_for_one_prompt_and_in_a_batch(any_model, large, tokenizer):
    sampler = TransformersSampler(any_model, tokenizer)
    settings = SamplingSettings(temperature=0, max_tokens=8)
    together = drawn(sampler, 1, temperature=0, max_tokens=8)
    for prompt, (sample,) in zip(PROMPTS, together, strict=True):
        ((alone,),) = sampler.sample([prompt], count=1, settings=settings, seeds=[1])
        assert sample.prompt.tolist() == prompt
        assert sample.tokens == alone.tokens
        assert sample.tokens.tolist() == forced_logits(any_model, sample).argmax(-1).tolist()
        assert sample.logprobs == array("f", [0.0] * len(sample.tokens))


SIZES = {**COMMON, "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 0}
DECODER = {"d_model": 32, "decoder_layers": 2, "decoder_attention_heads": 2, "decoder_ffn_dim": 48}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
WITHOUT = {
    "RecurrentGemma": ({"lru_width": 32, "attention_window_size": 4}, "padding"),
    "Rwkv": ({"attention_hidden_size": 32}, "padding"),
    "Bart": ({**DECODER, "is_decoder": True}, "padding"),
    "Llama4Text": ({**EXPERTS, "attn_temperature_tuning": True, "floor_scale": 8}, "padding"),
    "MiniMax": ({**EXPERTS, "layer_types": ["linear_attention", "full_attention"]}, "cache"),
    "DeepseekV4": ({**EXPERTS, "head_dim": 16, "q_lora_rank": 16}, "cache"),
    "FalconH1": ({"mamba_d_ssm": 32, "mamba_n_heads": 2, "mamba_d_state": 8}, ""),
    "MiniMax last": ({**EXPERTS, "layer_types": ["full_attention", "linear_attention"]}, ""),
}
"""Architectures, settings, and what changes their logits."""


@pytest.mark.parametrize("kind", WITHOUT)
@pytest.mark.filterwarnings("ignore")
def test_greedy_texts_equal_a_plain_loop_without_padding_and_cache(kind, tokenizer, caplog, large):
    settings, reason = WITHOUT[kind]
    name = kind.split()[0]
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**SIZES | settings)
    model = getattr(transformers, f"{name.removesuffix('Text')}ForCausalLM")(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    with caplog.at_level("WARNING", "rlobj"):
        groups = drawn(TransformersSampler(model, tokenizer), 2, temperature=0, max_tokens=9)
    for sample in flat(groups):
        assert sample.tokens.tolist() == forced_logits(model, sample).argmax(-1).tolist()
    found = {word for word in ("padding", "cache") if f"{word} changes its logits" in caplog.text}
    assert found == ({reason} - {""})


def test_a_response_ends_with_eos_or_at_max_tokens(sampler):
    samples = flat(drawn(sampler, 20))
    assert {sample.finish for sample in samples} == {"stop", "length"}
    for sample in samples:
        assert EOS not in sample.tokens[:-1]
        assert (sample.finish == "stop") == (sample.tokens[-1] == EOS)
        if sample.finish == "length":
            assert len(sample.tokens) == 6
        assert len(sample.logprobs) == len(sample.tokens)
        assert sample.text == "".join(CHARACTERS[i] for i in sample.tokens if i > EOS)


def test_a_stop_string_of_several_tokens_ends_a_response_and_is_kept(sampler):
    free = flat(drawn(sampler, 20, max_tokens=8))
    shown = attrgetter("tokens", "text", "finish")

    def raw(sample):
        return "".join(CHARACTERS[token] for token in sample.tokens)

    stop = tuple(raw(sample)[2:4] for sample in free[:20] if min(sample.tokens[:4]) > EOS)[:3]
    stopped = flat(drawn(sampler, 20, max_tokens=8, stop=stop))
    ends = [
        min((raw(one).find(text) + 2 for text in stop if text in raw(one)), default=None)
        for one in free
    ]
    assert stop
    assert None in ends
    for one, other, end in zip(free, stopped, ends, strict=True):
        if end is None:
            assert shown(other) == shown(one)
        else:
            assert raw(other) == raw(one)[:end]
            assert other.finish == "stop"


def test_the_generation_config_does_not_change_the_distribution(sampler, tokenizer):
    expected = drawn(sampler, 4)
    config = sampler.model.generation_config
    config.do_sample, config.temperature, config.top_k, config.top_p = True, 0.1, 1, 0.1
    config.eos_token_id = [EOS, 4]  # 4 is the letter "c", not a special token
    assert drawn(TransformersSampler(sampler.model, tokenizer), 4) == expected


def test_special_tokens_of_the_generation_config_end_a_response(sampler, tokenizer):
    sampler.model.generation_config.eos_token_id = [EOS, 0]
    samples = flat(drawn(TransformersSampler(sampler.model, tokenizer), 20))
    last = {sample.tokens[-1] for sample in samples if sample.finish == "stop"}
    assert last == {EOS, 0}


def test_sampling_disables_dropout_and_restores_the_modes(tokenizer):
    model = tiny("gpt2").train()
    model.transformer.h[0].eval()
    modes = [module.training for module in model.modules()]
    sampler = TransformersSampler(model, tokenizer)
    first = drawn(sampler, 1, temperature=0)
    assert [module.training for module in model.modules()] == modes
    assert drawn(sampler, 1, temperature=0) == first


def test_samples_use_the_shared_weights_and_have_their_version(sampler):
    before = flat(drawn(sampler, 1))
    with torch.no_grad():
        sampler.model.lm_head.weight[EOS] = 0
    sampler.sync([], 4)
    after = flat(drawn(sampler, 1))
    assert {sample.weight_version for sample in before} == {0}
    assert {sample.weight_version for sample in after} == {4}
    assert [sample.logprobs for sample in before] != [sample.logprobs for sample in after]


def test_a_sampler_with_its_own_copy_loads_and_reports_the_sent_weights(tokenizer):
    trained = tiny("qwen3")
    with torch.no_grad():
        trained.lm_head.weight.neg_()
    copying = TransformersSampler(tiny("qwen3"), tokenizer, own_copy=True)
    assert copying.received().version == -1
    sent = Sent(trained.named_parameters())
    copying.sync(sent, 3)
    compare(sent.digests, 3, copying.received())
    expected, found = drawn(TransformersSampler(trained, tokenizer), 2), drawn(copying, 2)
    assert tokens(found) == tokens(expected)
    assert [x.logprobs for x in flat(found)] == [x.logprobs for x in flat(expected)]
    assert {x.weight_version for x in flat(found)} == {3}
    with pytest.raises(RunError, match=r"no 'other\.weight'"):
        copying.sync([("other.weight", torch.zeros(1))], 4)


def test_empty_and_too_long_prompts_are_refused(sampler):
    settings = SamplingSettings(max_tokens=62)
    with pytest.raises(ConfigError, match="Prompt 1 has no tokens"):
        sampler.sample([[2], []], count=1, settings=settings, seeds=[0, 0])
    with pytest.raises(ConfigError, match="exceed the 64 positions of this model"):
        sampler.sample([[2, 3, 4]], count=1, settings=settings, seeds=[0])


@pytest.mark.parametrize("temperature", [0, 1])
def test_logits_that_are_not_finite_raise_an_error(sampler, temperature):
    with torch.no_grad():
        sampler.model.lm_head.weight[3, 0] = math.nan
    with pytest.raises(RunError, match="not finite"):
        drawn(sampler, 1, temperature=temperature)
