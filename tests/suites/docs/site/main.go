// SPDX-License-Identifier: Apache-2.0

// Command site looks at the site that `make site` has built: each link and each anchor within
// it leads somewhere, each page is in the navigation, and pictures are there, or passed through.
// Hugo knows the pages, and not what is on them.
//
//	site DIRECTORY
package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/net/html"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: site DIRECTORY")
		os.Exit(2)
	}
	pages, links, err := check(os.DirFS(os.Args[1]))
	if err != nil {
		fmt.Fprintf(os.Stderr, "site: %v\n", err)
		os.Exit(1)
	}
	fmt.Printf("%s: %d pages, %d links within the site\n", filepath.Clean(os.Args[1]), pages, links)
}

// page is what others may lead to, and where it leads.
type page struct {
	ids   map[string]bool
	links []string
	// pictures are the texts of Mermaid, images the files that it shows.
	pictures, images []string
}

// check reads all pages of the site.
func check(site fs.FS) (pages, links int, err error) {
	all := map[string]page{}
	err = fs.WalkDir(site, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || path.Ext(name) != ".html" {
			return err
		}
		file, err := site.Open(name)
		if err != nil {
			return err
		}
		defer file.Close()
		document, err := html.Parse(file)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		all[name] = read(document)
		return nil
	})
	if err != nil {
		return 0, 0, err
	}
	if _, is := all["index.html"]; !is {
		return 0, 0, errors.New("there is no index.html: build the site with `make site`")
	}
	var failed []error
	listed := map[string]bool{"": true, "./": true}
	for _, link := range all["index.html"].links {
		to, _, _ := strings.Cut(strings.TrimPrefix(link, "./"), "#")
		listed[to] = true
	}
	for name, p := range all {
		if name != "index.html" && !listed[name] {
			failed = append(failed, fmt.Errorf("%s is not in the navigation of index.html", name))
		}
		for _, link := range p.links {
			within, err := follow(all, name, link)
			if within {
				links++
			}
			failed = append(failed, err)
		}
		for _, image := range p.images {
			if _, err := fs.Stat(site, path.Join(path.Dir(name), image)); err != nil {
				failed = append(failed, fmt.Errorf("%s shows %s: %w", name, image, err))
			}
		}
		for _, picture := range p.pictures {
			if kind, _, _ := strings.Cut(strings.TrimSpace(picture), "\n"); strings.ContainsAny(kind, "<>&") || kind == "" {
				failed = append(failed, fmt.Errorf("%s has a picture that begins with %q", name, kind))
			}
		}
	}
	return len(all), links, errors.Join(failed...)
}

// follow looks whether a link of a page leads somewhere, as far as it stays in the site.
func follow(all map[string]page, from, link string) (within bool, err error) {
	to, err := url.Parse(link)
	if err != nil {
		return false, fmt.Errorf("%s links to %q: %w", from, link, err)
	}
	if to.Scheme != "" {
		return false, nil
	}
	name := from
	if to.Path != "" {
		name = path.Join(path.Dir(from), to.Path)
	}
	if strings.HasSuffix(to.Path, "/") {
		name = path.Join(name, "index.html")
	}
	target, is := all[name]
	switch {
	case !is:
		return true, fmt.Errorf("%s links to %s, and there is no %s", from, link, name)
	case to.Fragment != "" && !target.ids[to.Fragment]:
		return true, fmt.Errorf("%s links to %s, and %s has no heading %s", from, link, name, to.Fragment)
	}
	return true, nil
}

func read(node *html.Node) page {
	p := page{ids: map[string]bool{}}
	for n := range node.Descendants() {
		if n.Type != html.ElementNode {
			continue
		}
		for _, a := range n.Attr {
			switch {
			case a.Key == "id":
				p.ids[a.Val] = true
			case a.Key == "href" && n.Data == "a":
				p.links = append(p.links, a.Val)
			case a.Key == "src" && n.Data == "img":
				p.images = append(p.images, a.Val)
			case a.Key == "class" && a.Val == "mermaid" && n.FirstChild != nil:
				p.pictures = append(p.pictures, n.FirstChild.Data)
			}
		}
	}
	return p
}
