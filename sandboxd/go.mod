module orchard/sandboxd

go 1.22
