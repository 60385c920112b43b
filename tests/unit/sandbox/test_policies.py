"""The network policies, read as a cluster reads them."""

import ipaddress
from typing import Any

import pytest

from orchard.core.errors import InvalidArgument
from orchard.sandbox.kubernetes import Egress, Ingress, KubernetesSettings
from orchard.sandbox.kubernetes.policies import EVERY, OPEN, network_policies

INSIDE = [ipaddress.ip_network(text) for text in ("8.8.4.0/24", "198.51.100.7/32", "2001:db8:1::/64", "10.1.0.0/16")]


def policies(**given: Any) -> dict[str, dict[str, Any]]:
    made = network_policies("boxes", KubernetesSettings(**given), INSIDE)
    return {each["metadata"]["name"]: each["spec"] for each in made}


def leads_out(address: str, **given: Any) -> bool:
    """Whether an open sandbox may send anything at all to an address."""
    target = ipaddress.ip_address(address)
    anything = [rule for rule in policies(**given)[OPEN]["egress"] if "ports" not in rule]
    return any(
        target in ipaddress.ip_network(block["cidr"])
        and not any(target in ipaddress.ip_network(cut) for cut in block["except"])
        for rule in anything
        for block in (peer["ipBlock"] for peer in rule["to"])
    )


@pytest.mark.parametrize("address", ["1.1.1.1", "172.32.0.1", "2606:4700::1111", "64:ff9b::1.1.1.1"])
def test_an_open_sandbox_reaches_the_world(address: str) -> None:
    assert leads_out(address)


@pytest.mark.parametrize(
    "address",
    [
        "10.0.0.1", "172.16.0.1", "192.168.1.1", "100.64.0.1", "169.254.169.254", "127.0.0.1", "0.0.0.0", "224.0.0.1",
        "255.255.255.255", "fd00:ec2::254", "fe80::1", "::1", "::a9fe:a9fe", "ff02::1", "64:ff9b::a9fe:a9fe",
        "64:ff9b::10.0.0.1", "2002:a9fe:a9fe::1", "8.8.4.4", "198.51.100.7", "64:ff9b::8.8.4.4", "2001:db8:1::5",
    ],
)  # fmt: skip
def test_an_open_sandbox_does_not_reach_what_is_inside_by_any_family(address: str) -> None:
    assert not leads_out(address)


def test_a_configured_range_is_inside_too() -> None:
    assert leads_out("1.2.3.4")
    assert not leads_out("1.2.3.4", egress=Egress(excepted=["1.2.3.0/24"]))


def test_exceptions_are_strictly_within_their_range_as_the_api_server_wants() -> None:
    for rule in policies()[OPEN]["egress"]:
        for block in (peer["ipBlock"] for peer in rule["to"] if "ipBlock" in peer):
            whole = ipaddress.ip_network(block["cidr"])
            cuts = [ipaddress.ip_network(cut) for cut in block["except"]]
            assert all(cut.version == whole.version and cut.prefixlen > whole.prefixlen for cut in cuts)


def test_without_its_label_a_sandbox_has_no_network_and_no_caller_but_the_named() -> None:
    settings = Ingress(namespaces=["service", "boxes"], cidrs=["203.0.113.0/28"])
    every = policies(ingress=settings)[EVERY]
    assert every["podSelector"] == {"matchLabels": {"orchard/sandbox": "1"}}
    assert every["policyTypes"] == ["Ingress", "Egress"]
    assert "egress" not in every
    (rule,) = every["ingress"]
    assert rule["ports"] == [{"protocol": "TCP", "port": 8421}]
    assert rule["from"] == [
        *(
            {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": place}},
                "podSelector": {"matchLabels": {f"orchard/{kind}": "1"}},
            }
            for place in ("boxes", "service")
            for kind in ("service", "client")
        ),
        {"ipBlock": {"cidr": "203.0.113.0/28"}},
    ]


def test_names_are_asked_of_the_cluster_or_of_the_named_resolvers_alone() -> None:
    ports = [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]
    (cluster,) = [rule for rule in policies()[OPEN]["egress"] if "ports" in rule]
    assert cluster["ports"] == ports
    assert [list(peer) for peer in cluster["to"]] == [["namespaceSelector", "podSelector"]]
    (own,) = [rule for rule in policies(egress=Egress(resolvers=["169.254.20.10"]))[OPEN]["egress"] if "ports" in rule]
    assert own == {"to": [{"ipBlock": {"cidr": "169.254.20.10/32"}}], "ports": ports}


@pytest.mark.parametrize("given", [{"ingress": Ingress(cidrs=["10.0.0.1/8"])}, {"egress": Egress(resolvers=["dns"])}])
def test_what_is_no_range_is_refused_by_name(given: Any) -> None:
    with pytest.raises(InvalidArgument) as caught:
        policies(**given)
    assert caught.value.field in ("ingress.cidrs", "egress.resolvers")
